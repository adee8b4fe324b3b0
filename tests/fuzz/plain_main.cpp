// Runs a fuzz target without libFuzzer, for compilers that lack it and for ctest.
//
//   fuzz_shards_plain FILE...          runs each file: a crash that libFuzzer saved, or a corpus
//   fuzz_shards_plain --random N [S]   runs N mutations of small valid inputs; the same ones every time, unless S
//   differs fuzz_shards_plain --seeds FOLDER   writes those valid inputs, as a corpus to start libFuzzer from
#include <sys/resource.h>
#include <sys/time.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "corpus.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Random = std::mt19937_64;
using Inputs = std::vector<std::string>;

// Most inputs are JSON, or have some in them.
constexpr std::string_view kJsonWords[] = {"null",
                                           "true",
                                           "false",
                                           "[",
                                           "]",
                                           "{",
                                           "}",
                                           ",",
                                           ":",
                                           "\"",
                                           "[[[[",
                                           "-1",
                                           "0",
                                           "1",
                                           "0.5",
                                           "1e999",
                                           "4294967296",
                                           "9223372036854775807",
                                           "18446744073709551615",
                                           R"(\u0000)",
                                           R"(\ud800)",
                                           "\xff",
                                           "\xc3\xa9"};

std::size_t below(Random& random, std::size_t limit) { return static_cast<std::size_t>(random() % limit); }

std::string_view word(Random& random) {
  const std::span<const std::string_view> from = below(random, 2) == 0 ? kJsonWords : qdelta::fuzz::words();
  return from[below(random, from.size())];
}

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
      input.insert(at, input.substr(below(random, input.size() + 1), below(random, 24)));
      break;
    case 4:
      input.insert(at, word(random));
      break;
    default:
      input.replace(at, span, word(random));
  }
}

// What one input may take: seconds of the processor's time, and memory of the whole program.
constexpr int kMostSeconds = 60;
constexpr long kMostKilobytes = 4L << 20U;

const std::string* running = nullptr;

void save_input(int signal) {
  if (signal == SIGPROF) std::fprintf(stderr, "more than %d seconds\n", kMostSeconds);
  std::ofstream("fuzz-crash", std::ios::binary) << *running;
  std::fprintf(stderr, "the input is in fuzz-crash\n");
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const std::string& input) {
  // A copy of exactly its size, so that a read past the end is one past the allocation too.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  running = &input;
  itimerval limit{};
  limit.it_value.tv_sec = kMostSeconds;
  setitimer(ITIMER_PROF, &limit, nullptr);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  if (used.ru_maxrss <= kMostKilobytes) return;
  std::fprintf(stderr, "more than %ld KB of memory\n", kMostKilobytes);
  std::abort();
}

void run_random(const Inputs& seeds, unsigned long count, unsigned long start) {
  for (const std::string& seed : seeds) run(seed);
  Random random(20'260'101 + start);
  for (unsigned long i = 0; i < count; ++i) {
    std::string input = seeds[below(random, seeds.size())];
    for (std::size_t mutations = 1 + below(random, 4); mutations > 0; --mutations) mutate(input, random);
    run(input);
  }
  std::printf("%lu mutations of %zu inputs\n", count, seeds.size());
}

bool write(const Inputs& seeds, const std::string& folder) {
  int number = 0;
  for (const std::string& seed : seeds) {
    std::ofstream stream(folder + "/seed-" + std::to_string(number++), std::ios::binary);
    stream.write(seed.data(), static_cast<std::streamsize>(seed.size()));
    if (!stream.flush()) return false;
  }
  return true;
}

bool run_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return false;
  run({std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()});
  return true;
}

int failed(const char* what, const std::string& path) {
  std::fprintf(stderr, "cannot %s %s\n", what, path.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  std::signal(SIGABRT, save_input);  // what an expectation that fails ends with
  std::signal(SIGPROF, save_input);  // the time is up
  const auto number = [&](std::size_t at) { return std::strtoul(args[at].c_str(), nullptr, 10); };
  if ((args.size() == 2 || args.size() == 3) && args[0] == "--random") {
    run_random(qdelta::fuzz::seeds(), number(1), args.size() == 3 ? number(2) : 0);
    return 0;
  }
  if (args.size() == 2 && args[0] == "--seeds")
    return write(qdelta::fuzz::seeds(), args[1]) ? 0 : failed("write into", args[1]);
  if (args.empty() || args[0].starts_with("--")) {
    std::fprintf(stderr, "usage: %s FILE... | --random N [S] | --seeds FOLDER\n", argv[0]);
    return 2;
  }
  for (const std::string& path : args) {
    if (!run_file(path)) return failed("read", path);
  }
  return 0;
}
