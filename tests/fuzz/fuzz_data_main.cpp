// Runs fuzz_data.cpp without libFuzzer, for compilers that lack it and for ctest.
//
//   fuzz_data_plain FILE...          runs each file: a crash that libFuzzer saved, or a corpus
//   fuzz_data_plain --random N       runs N mutations of small valid files; the same ones every time
//   fuzz_data_plain --seeds FOLDER   writes those valid files, as a corpus to start libFuzzer from
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/shard_format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Random = std::mt19937_64;

constexpr std::string_view kTokenizers[] = {
    R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4},"merges":["a b","ab c"]}})",
    R"({"added_tokens":[{"id":3,"content":"<s>","single_word":true,"lstrip":true,"rstrip":false,"normalized":true,"special":true}],)"
    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"},{"type":"Strip","strip_left":true,"strip_right":true},)"
    R"({"type":"Prepend","prepend":"x"},{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},)"
    R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true},)"
    R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},)"
    R"({"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
    R"("model":{"type":"BPE","unk_token":"?","fuse_unk":true,"byte_fallback":true,"vocab":{"?":0,"\u2581":1,"a":2},"merges":[]}})",
    R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'ll)|[^\\s\\p{L}]?\\p{L}+|\\p{N}{1,3}|[a-z&&[^q]]|\\s+(?!\\S)|\\s+"},)"
    R"("behavior":"Isolated","invert":false},{"type":"Digits","individual_digits":true},{"type":"Punctuation","behavior":"Contiguous"},)"
    R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":true}]},"decoder":{"type":"ByteLevel"},)"
    R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
    R"("pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[0],"tokens":["<s>"]}}},)"
    R"("model":{"type":"BPE","ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"l":4,"ll":5},"merges":[["a","b"],["l","l"]]}})",
};

// Pieces that random bytes would not find.
constexpr std::string_view kWords[] = {"null",
                                       "true",
                                       "false",
                                       "-1",
                                       "0",
                                       "1",
                                       "4294967296",
                                       "1e9",
                                       "[",
                                       "]",
                                       "{",
                                       "}",
                                       ",",
                                       ":",
                                       "\"",
                                       "\\\\p{L}",
                                       "\\\\p{^Han}",
                                       "\\\\s",
                                       "\\\\w",
                                       "\\\\d+",
                                       "(?i:",
                                       "(?:",
                                       "(?!",
                                       "(?<=",
                                       "[^",
                                       "&&",
                                       "|",
                                       "*",
                                       "+?",
                                       "{2,3}",
                                       ")",
                                       "\\ud800",
                                       "\\u0000",
                                       "\\u2581",
                                       "\xff",
                                       "\xc3\xa9",
                                       "\"NFD\"",
                                       "\"Whitespace\"",
                                       "\"Removed\"",
                                       "\"MergedWithNext\"",
                                       "\"MergedWithPrevious\"",
                                       "\"always\"",
                                       "\"never\"",
                                       "\"Sequence\"",
                                       "\"Split\"",
                                       "<0x0A>"};

// A shard of so many documents of up to five tokens.
std::string shard(std::uint32_t vocab_size, std::size_t documents) {
  qdelta::ShardHeader header;
  header.width = qdelta::shard_token_width(static_cast<std::int32_t>(vocab_size));
  header.vocab_size = vocab_size;
  header.documents = documents;
  std::vector<std::uint64_t> offsets{0};
  for (std::size_t i = 0; i < documents; ++i) offsets.push_back(offsets.back() + 1 + i % 5);
  header.tokens = offsets.back();
  const std::string tokens(qdelta::shard_data_bytes(header.tokens, header.width), '\0');
  header.checksum = qdelta::shard_checksum(header, offsets);
  header.token_checksum = qdelta::checksum_of(std::as_bytes(std::span(tokens)));
  std::string file(reinterpret_cast<const char*>(&header), sizeof(header));
  file += tokens;
  return file.append(reinterpret_cast<const char*>(offsets.data()), offsets.size() * sizeof(offsets[0]));
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  struct Shape {
    std::uint32_t vocab_size;
    std::size_t documents;
  };
  for (const Shape shape : {Shape{10, 1}, Shape{65536, 3}, Shape{65537, 7}, Shape{1000, 0}}) {
    all.push_back(std::string(1, '\0').append(shard(shape.vocab_size, shape.documents)));
  }
  for (const std::string_view tokenizer : kTokenizers) all.push_back(std::string(1, '\1').append(tokenizer));
  return all;
}

std::size_t below(Random& random, std::size_t limit) { return static_cast<std::size_t>(random() % limit); }

// The first byte, which says what it is, stays.
void mutate(std::string& input, Random& random) {
  const std::size_t at = 1 + below(random, input.size());
  const std::size_t span = below(random, 1 + std::min<std::size_t>(16, input.size() - at));
  switch (below(random, 5)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(random, 8)));
      break;
    case 1:
      input.erase(at, span);
      break;
    case 2:
      input.insert(at, std::string(kWords[below(random, std::size(kWords))]));
      break;
    case 3: {
      const std::string_view word = kWords[below(random, std::size(kWords))];
      input.replace(at, span, word);
      break;
    }
    default:
      if (input.size() > 16) input.insert(at, input.substr(1 + below(random, input.size() - 9), below(random, 24)));
  }
}

void run(const std::string& input) {
  // A copy of exactly its size, so that a read past the end is one past the allocation too.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int run_random(long count) {
  const std::vector<std::string> starts = seeds();
  for (const std::string& start : starts) run(start);
  Random random(20240607);
  for (long i = 0; i < count; ++i) {
    std::string input = starts[below(random, starts.size())];
    for (std::size_t n = 1 + below(random, 4); n > 0; --n) mutate(input, random);
    run(input);
  }
  std::printf("%ld mutations of %zu files\n", count, starts.size());
  return 0;
}

int write_seeds(const std::string& folder) {
  int number = 0;
  for (const std::string& seed : seeds()) {
    std::ofstream file(folder + "/seed-" + std::to_string(number++), std::ios::binary);
    file << seed;
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write into %s\n", folder.c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() == 2 && args[0] == "--random") return run_random(std::strtol(args[1].c_str(), nullptr, 10));
  if (args.size() == 2 && args[0] == "--seeds") return write_seeds(args[1]);
  if (args.empty() || args[0].starts_with("--")) {
    std::fprintf(stderr, "usage: %s FILE... | --random N | --seeds FOLDER\n", argv[0]);
    return 2;
  }
  for (const std::string& path : args) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", path.c_str());
      return 1;
    }
    run({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
  }
  return 0;
}
