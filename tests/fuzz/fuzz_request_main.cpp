// Runs fuzz_request without libFuzzer: --random N mutations of good requests, the same every time; FILE... runs each;
// --seeds FOLDER writes the good ones as a corpus to start from.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Random = std::mt19937_64;

constexpr std::string_view kSeeds[] = {
    R"({"model":"m","prompt":[[1,2,3],[4]],"temperature":0,"max_tokens":1,"logprobs":1,"seed":1234,"echo":true})",
    R"({"prompt":"Once","max_tokens":32,"temperature":0,"stop":["\n","</s>"],"seed":1234})",
    R"({"prompt":["a","b"],"n":2,"best_of":2,"top_p":0.9,"top_k":-1,"min_p":0.1,"repetition_penalty":1.2,"stream":true,)"
    R"("stream_options":{"include_usage":true}})",
    R"({"prompt":[1,2],"stop":"x","suffix":"","logit_bias":{},"presence_penalty":0,"ignore_eos":false,"user":null})",
    R"({"tokens":[1,2,299],"prompt":"text","add_special_tokens":false})"};

// Pieces that random bytes would not find.
constexpr std::string_view kWords[] = {"null",
                                       "true",
                                       "[",
                                       "]",
                                       "{",
                                       "}",
                                       ",",
                                       ":",
                                       "\"",
                                       "-1",
                                       "0",
                                       "1e999",
                                       "1e-999",
                                       "0.5",
                                       "18446744073709551615",
                                       "-9223372036854775808",
                                       "\"stop\":",
                                       "\"prompt\":",
                                       "\"n\":",
                                       "[[1]]",
                                       "[\"a\"]",
                                       "[[[[",
                                       R"(\u0000)",
                                       R"(\ud800)",
                                       "\xff",
                                       "300",
                                       "\"logprobs\":",
                                       "\"echo\":",
                                       "\"max_tokens\":"};

std::size_t below(Random& random, std::size_t limit) { return static_cast<std::size_t>(random() % limit); }

void mutate(std::string& input, Random& random) {
  const std::size_t at = below(random, input.size() + 1);
  const std::size_t span = below(random, 1 + std::min<std::size_t>(16, input.size() - at));
  const std::string word(kWords[below(random, std::size(kWords))]);
  switch (below(random, 5)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(random, 8)));
      break;
    case 1:
      input.erase(at, span);
      break;
    case 2:
      input.insert(at, word);
      break;
    case 3:
      input.replace(at, span, word);
      break;
    default:
      input.insert(at, input.substr(below(random, input.size() + 1), span));
  }
}

void run(const std::string& input) {
  // A copy of exactly its size, so that a read past the end is one past the allocation too.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int run_random(long count) {
  for (const std::string_view seed : kSeeds) run(std::string(seed));
  Random random(20'260'707);
  for (long i = 0; i < count; ++i) {
    std::string input(kSeeds[below(random, std::size(kSeeds))]);
    for (std::size_t n = 1 + below(random, 4); n > 0; --n) mutate(input, random);
    run(input);
  }
  std::printf("%ld mutations of %zu requests\n", count, std::size(kSeeds));
  return 0;
}

int write_seeds(const std::string& folder) {
  int number = 0;
  for (const std::string_view seed : kSeeds) {
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
