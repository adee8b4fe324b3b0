// The command line as a whole: help, version, exit statuses; and `qdelta info`.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>

#include "cli_testing.h"
#include "core/cpu_info.h"

namespace qdelta::testing {
namespace {

TEST(Main, Version) {
  const RunResult result = run_qdelta({"--version"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "qdelta " QDELTA_VERSION "\n");
  EXPECT_EQ(result.err, "");
}

TEST(Main, HelpTeaches) {
  const RunResult result = run_qdelta({"--help"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.err, "");
  for (const char* piece : {"delta-rule", "Subcommands", "Examples", "qdelta op --in", "bench", "info", "--version"}) {
    EXPECT_TRUE(contains(result.out, piece)) << piece;
  }
  EXPECT_EQ(run_qdelta({"-h"}).out, result.out);
}

// The subcommands that --help lists: the first word of each line below their heading.
std::vector<std::string> subcommands() {
  std::istringstream help(run_qdelta({"--help"}).out);
  std::vector<std::string> names;
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (line.empty()) listed = false;
    if (listed) names.push_back(line.substr(2, line.find(' ', 2) - 2));
    if (line == "Subcommands:") listed = true;
  }
  return names;
}

TEST(Main, EverySubcommandHasHelp) {
  const std::vector<std::string> names = subcommands();
  for (const char* name :
       {"demo", "tokenize", "train", "generate", "chat", "perplexity", "logits", "plot", "op", "bench", "info"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
  for (const std::string& name : names) {
    const RunResult result = run_qdelta({name, "--help"});
    EXPECT_EQ(result.status, 0) << name;
    EXPECT_EQ(result.err, "") << name;
    EXPECT_TRUE(contains(result.out, "Usage: qdelta " + name)) << result.out;
    EXPECT_TRUE(contains(result.out, "\nExample")) << name << " has no example";
  }
  const std::string op = run_qdelta({"op", "--help"}).out;
  for (const char* option : {"--in", "--out", "--rule", "--form", "--chunk", "--dtype", "--device", "--threads",
                             "--scale", "--qk-l2norm", "--no-qk-l2norm", "--backward", "cu_seqlens", "Examples"}) {
    EXPECT_TRUE(contains(op, option)) << option;
  }
}

TEST(Main, UnknownWordsGetAHint) {
  expect_failure(run_qdelta({"opp"}), 2, {"'opp'", "op, ", "bench", "info", "qdelta --help"});
  expect_failure(run_qdelta({"--opp"}), 2, {"option '--opp'", "qdelta --help"});
  expect_failure(run_qdelta({}), 2, {"op, ", "bench", "info", "qdelta --help"});
  expect_failure(run_qdelta({"bench", "opp"}), 2, {"'opp'", "qdelta bench --help"});
  expect_failure(run_qdelta({"info", "more"}), 2, {"more", "qdelta info --help"});
}

TEST(Main, OutputThatCannotBeWrittenIsAFailure) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{{"--help"}, {"info"}}) {
    const RunResult result = run_qdelta(args, "/dev/full");
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(result.err.starts_with("qdelta: ")) << result.err;
  }
}

TEST(Info, ForPeople) {
  const RunResult result = run_qdelta({"info"});
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* piece : {QDELTA_VERSION, "C++20", "Sanitizers", "CPU", "Cores", "Caches", "Memory", "Highway target",
                            "cuda: not in this build"}) {
    EXPECT_TRUE(contains(result.out, piece)) << piece;
  }
  for (const RuleTraits& rule : kRuleTraits) {
    EXPECT_TRUE(contains(result.out, rule.name) && contains(result.out, rule.title) &&
                contains(result.out, rule.formula))
        << rule.name;
  }
}

TEST(Info, ForMachines) {
  const RunResult result = run_qdelta({"info", "--json"});
  EXPECT_EQ(result.status, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("version"), QDELTA_VERSION);
  EXPECT_EQ(json.at("build").at("cpp_standard"), 20);
  EXPECT_TRUE(json.at("build").at("sanitizers").is_array());
  EXPECT_GT(json.at("threads"), 0);
  EXPECT_GT(json.at("memory").at("bytes"), 0);
  EXPECT_EQ(json.at("devices").at(0).at("name"), "cpu");
  EXPECT_EQ(json.at("devices").at(0).at("available"), true);
  EXPECT_EQ(json.at("devices").at(1).at("name"), "cuda");
  EXPECT_EQ(json.at("devices").at(1).at("available"), false);
  ASSERT_EQ(json.at("rules").size(), kRuleCount);
  for (std::size_t i = 0; i < kRuleCount; ++i) {
    EXPECT_EQ(json.at("rules").at(i).at("name"), kRuleTraits[i].name);
    EXPECT_EQ(json.at("rules").at(i).at("formula"), kRuleTraits[i].formula);
  }
}

TEST(Info, TheProcessorIsTheOneTheTestsRunOn) {
  const nlohmann::json json = nlohmann::json::parse(run_qdelta({"info", "--json"}).out);
  const CpuInfo cpu = cpu_info();
  EXPECT_EQ(json.at("cpu").at("model"), cpu.model);
  EXPECT_EQ(json.at("cpu").at("hardware_threads"), cpu.hardware_threads);
  EXPECT_EQ(json.at("cpu").at("caches").size(), cpu.caches.size());
  EXPECT_EQ(json.at("simd").at("target"), simd_target());
  for (const CpuFeature& feature : cpu.features) {
    const nlohmann::json& reported = json.at("cpu").at("features").at(std::string(feature.name));
    EXPECT_EQ(reported.at("usable"), feature.usable) << feature.name;
    EXPECT_TRUE(feature.in_cpu || !feature.usable) << feature.name;
  }
}

// Against a second opinion: the flags that the kernel lists.
TEST(Info, TheKernelAgreesOnTheInstructionSets) {
  std::ifstream file("/proc/cpuinfo");
  std::string flags;
  for (std::string line; std::getline(file, line) && flags.empty();) {
    if (line.starts_with("flags")) flags = line.substr(line.find(':') + 1) + " ";
  }
  if (flags.empty()) GTEST_SKIP() << "the kernel lists no flags";
  const std::map<std::string_view, const char*> names = {{"avx2", " avx2 "},
                                                         {"fma", " fma "},
                                                         {"avx512", " avx512bw "},
                                                         {"avx512_bf16", " avx512_bf16 "},
                                                         {"amx_bf16", " amx_bf16 "}};
  for (const CpuFeature& feature : cpu_info().features) {
    EXPECT_EQ(feature.in_cpu, contains(flags, names.at(feature.name))) << feature.name;
  }
}

TEST(Main, IntegersFit) {
  const std::string large = "99999999999999999999";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", "--model", "m", "--prompt", large, "--max-tokens", large},
        {"train", "--text", "t", "--out", "o", "--steps", "-" + large},
        {"bench", "generate", "--batch", "1," + large},
        {"serve", "--model", "m", "--max-body", large}}) {
    const RunResult result = run_qdelta(command);
    EXPECT_EQ(result.status, 2) << command[0];
    EXPECT_TRUE(contains(result.err, "too large a number")) << command[0] << ": " << result.err;
  }
}

TEST(Main, ASeedIsNotNegative) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"generate", "--model", "m", "--prompt", "p"},
                                                  {"train", "--text", "t", "--out", "o"},
                                                  {"demo"},
                                                  {"eval", "--model", "m", "--tasks", "mqar"}}) {
    std::vector<std::string> words = command;
    words.insert(words.end(), {"--seed", "-1"});
    const RunResult result = run_qdelta(words);
    EXPECT_NE(result.status, 0) << command[0];
    EXPECT_TRUE(contains(result.err, "--seed")) << command[0] << ": " << result.err;
  }
}

}  // namespace
}  // namespace qdelta::testing
