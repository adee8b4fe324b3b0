// Runs a libFuzzer entry without libFuzzer, for compilers that lack it and for ctest.
//
//   fuzz_safetensors_plain FILE...          runs each file: a crash that libFuzzer saved, or a corpus
//   fuzz_safetensors_plain --random N       runs N mutations of small valid files; the same ones every time
//   fuzz_safetensors_plain --seeds FOLDER   writes those valid files, as a corpus to start libFuzzer from
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using namespace std::string_view_literals;

using Random = std::mt19937_64;

struct Seed {
  std::string_view header;
  std::size_t data_bytes;
};

constexpr Seed kSeeds[] = {
    {"{}", 0},
    {R"({"__metadata__":{"format":"pt","":"\u00e9"}})", 0},
    {R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24},
    {R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"BF16","shape":[3,0],"data_offsets":[8,8]}})",
     8},
    {R"({"__metadata__":{"a":"b"},"i":{"dtype":"I64","shape":[1,2],"data_offsets":[0,16]},)"
     R"("h":{"dtype":"F16","shape":[2],"data_offsets":[16,20]},"b":{"dtype":"BOOL","shape":[4],"data_offsets":[20,24]}})",
     24},
    {R"({"q":{"dtype":"F8_E4M3","shape":[1,1,1,1,1,3],"data_offsets":[0,3]},)"
     R"("u":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})",
     8},
};

// Pieces that random bytes would not find.
constexpr std::string_view kWords[] = {R"("dtype")",
                                       R"("shape")",
                                       R"("data_offsets")",
                                       R"("__metadata__")",
                                       "F32",
                                       "BF16",
                                       "U64",
                                       "I8",
                                       "C64",
                                       "[",
                                       "]",
                                       "{",
                                       "}",
                                       ",",
                                       ":",
                                       "\"",
                                       "-1",
                                       "0",
                                       "8",
                                       "24",
                                       "1.5",
                                       "1e9",
                                       "null",
                                       "true",
                                       "[[[[",
                                       R"({"a":{)",
                                       R"(\u0000)",
                                       R"(\ud800)",
                                       "18446744073709551615",
                                       "9223372036854775807",
                                       "4294967296",
                                       "\0"sv,
                                       "\xff",
                                       "\xc3\xa9"};

std::string as_file(const Seed& seed) {
  std::string file(8, '\0');
  std::string header(seed.header);
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(seed.data_bytes, '\1');
}

// What fuzz_safetensors.cpp calls framed.
std::string as_framed(const Seed& seed) {
  std::string input(1, static_cast<char>(seed.data_bytes));
  return input.append(seed.header);
}

std::size_t below(Random& random, std::size_t limit) { return static_cast<std::size_t>(random() % limit); }

void mutate(std::string& input, Random& random) {
  const std::size_t at = below(random, input.size() + 1);
  const std::size_t span = below(random, 1 + std::min<std::size_t>(16, input.size() - at));
  switch (below(random, 6)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(random());
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(random, 8)));
      break;
    case 2:
      input.erase(at, span);
      break;
    case 3:
      input.insert(at, input.substr(below(random, input.size() + 1), span));
      break;
    case 4:
      input.insert(at, kWords[below(random, std::size(kWords))]);
      break;
    default:
      input.replace(at, span, kWords[below(random, std::size(kWords))]);
  }
}

void run(const std::string& input) {
  // A copy of exactly its size, so that a read past the end is one past the allocation too.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

void run_random(unsigned long count) {
  Random random(20'260'101);
  for (unsigned long i = 0; i < count; ++i) {
    const Seed& seed = kSeeds[below(random, std::size(kSeeds))];
    std::string input = below(random, 2) == 0 ? as_file(seed) : as_framed(seed);
    for (std::size_t mutations = below(random, 5); mutations > 0; --mutations) mutate(input, random);
    run(input);
  }
  std::printf("%lu inputs\n", count);
}

bool write_seeds(const std::string& folder) {
  int number = 0;
  for (const Seed& seed : kSeeds) {
    for (const std::string& input : {as_file(seed), as_framed(seed)}) {
      std::ofstream stream(folder + "/seed-" + std::to_string(number++), std::ios::binary);
      stream.write(input.data(), static_cast<std::streamsize>(input.size()));
      if (!stream.flush()) return false;
    }
  }
  return true;
}

bool run_file(const char* path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return false;
  run({std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()});
  std::printf("%s\n", path);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "--random" && argc == 3) {
    run_random(std::strtoul(argv[2], nullptr, 10));
    return 0;
  }
  if (first == "--seeds" && argc == 3) {
    if (write_seeds(argv[2])) return 0;
    std::fprintf(stderr, "cannot write to the folder %s\n", argv[2]);
    return 1;
  }
  if (argc == 1 || first.substr(0, 2) == "--") {
    std::fprintf(stderr, "usage: %s FILE... | --random N | --seeds FOLDER\n", argv[0]);
    return 2;
  }
  for (int i = 1; i < argc; ++i) {
    if (!run_file(argv[i])) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 1;
    }
  }
  return 0;
}
