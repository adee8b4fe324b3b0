// The help of the subcommands that train and run models: each names its options.
#include "training_testing.h"

namespace qdelta::testing {
namespace {

struct Help {
  const char* command;
  std::vector<const char*> options;
};

TEST(Help, NamesTheOptionsOfEachSubcommand) {
  const std::vector<Help> all{
      {"train",
       {"--config",        "--out",         "--resume",     "--threads",   "--seed",       "--text", "--data",
        "--validation",    "--mqar",        "--rewrites",   "--tokenizer", "--seq-len",    "--rows", "--model-config",
        "--rule",          "--hidden-size", "--layers",     "--steps",     "--accumulate", "--lr",   "--warmup",
        "--recompute",     "--eval-every",  "--save-every", "--keep",      "--patience",   "--ema",  "--sample-every",
        "--sample-prompt", "Examples",      "Ctrl-C"}},
      {"generate",
       {"--model", "--prompt", "--prompt-file", "--max-tokens", "--temperature", "--top-k", "--top-p", "--min-p",
        "--repetition-penalty", "--seed", "--stop", "--threads", "--load-state", "--save-state", "--num-samples",
        "--stream", "--no-bos", "Examples"}},
      {"chat", {"--model", "--max-tokens", "--temperature", "--load-state", "--save-state", "Examples"}},
      {"serve",
       {"--model", "--host", "--port", "--api-key", "--max-batch", "--max-queue", "--max-tokens", "--max-prompt",
        "--max-request", "--max-sequences", "--max-body", "--grace", "--device", "--threads", "/v1/completions",
        "curl"}},
      {"perplexity", {"--model", "--data", "--limit", "--tokenizer", "--threads"}},
      {"eval",
       {"--model",      "--tasks",         "--data",        "--limit",    "--batch",     "--bos",     "--max-length",
        "--out",        "--log-examples",  "--restart",     "--dry-run",  "--lengths",   "--samples", "--seed",
        "--ruler-data", "--recall-length", "--mqar",        "--rewrites", "--bootstrap", "--device",  "--dtype",
        "--threads",    "lambada_openai",  "niah_single_3", "Examples",   "Ctrl-C"}},
      {"logits", {"--model", "--in", "--out", "--grads", "--threads", "Example"}},
      {"tokenize",
       {"--tokenizer", "--out", "--format", "--text-key", "--paragraphs", "--document-separator", "--append-eos",
        "--prepend-bos", "--shard-tokens", "--threads", "--force", "Examples"}},
      {"plot", {"--out", "--y", "--terminal"}},
      {"verify", {"--json", "PATH", "no checksum", "exit status", "Examples"}},
      {"demo", {"--steps", "--seeds", "--seed", "--out", "--device", "Examples"}},
      {"analyze",
       {"--model", "--data", "--out", "--tokens", "--length", "--layers", "--heads", "--history", "--device",
        "--threads", "Examples"}},
      {"compare", {"--rules", "--seeds", "--ablations", "--config", "--out", "--steps", "--device", "Examples"}},
  };
  for (const Help& help : all) {
    const RunResult result = run_qdelta({help.command, "--help"});
    EXPECT_EQ(result.status, 0) << help.command;
    EXPECT_EQ(result.err, "") << help.command;
    EXPECT_TRUE(contains(result.out, std::string("qdelta ") + help.command)) << result.out;
    for (const char* option : help.options) EXPECT_TRUE(contains(result.out, option)) << help.command << " " << option;
    EXPECT_EQ(run_qdelta({help.command, "-h"}).out, result.out);
  }
}

// Not those of the program as a whole, which the parser shows where a subcommand has none.
TEST(Help, EverySubcommandHasExamplesOfItsOwn) {
  const auto examples = [](const Words& words) {
    const std::string help = run_well(joined(words, {"--help"})).out;
    const std::size_t at = help.find("\nExample");
    return at == std::string::npos ? "" : help.substr(at);
  };
  const std::string common = examples({});
  for (const Words& words : std::vector<Words>{{"demo"},
                                               {"tokenize"},
                                               {"train"},
                                               {"generate"},
                                               {"chat"},
                                               {"serve"},
                                               {"perplexity"},
                                               {"eval"},
                                               {"logits"},
                                               {"plot"},
                                               {"verify"},
                                               {"analyze"},
                                               {"compare"},
                                               {"op"},
                                               {"info"},
                                               {"bench"},
                                               {"bench", "op"},
                                               {"bench", "train"},
                                               {"bench", "generate"}}) {
    const std::string own = examples(words);
    EXPECT_NE(own, common) << words.back();
    EXPECT_TRUE(contains(own, "qdelta " + words.front())) << words.back() << own;
  }
}

TEST(Help, SaysWhatASeedIsFor) {
  const std::string help = run_well({"generate", "--help"}).out;
  EXPECT_TRUE(contains(help, "--seed UINT=")) << help;
  EXPECT_TRUE(contains(help, "numbers of its own")) << help;
  EXPECT_TRUE(contains(help, "one prompt and one sample")) << help;
}

TEST(Seeds, MustBeWholeNumbers) {
  for (const Words& words : std::vector<Words>{{"demo", "--steps", "1", "--seed"},
                                               {"train", "--text", "a", "--out", "b", "--seed"},
                                               {"generate", "--model", "m", "--seed"},
                                               {"chat", "--model", "m", "--seed"},
                                               {"eval", "--model", "m", "--tasks", "mqar", "--seed"},
                                               {"compare", "--out", "b", "--seeds"},
                                               {"compare", "--out", "b", "--seed"}}) {
    for (const char* wrong : {"-4", "1.5", "x", "7x"}) {
      const RunResult result = run_qdelta(joined(words, {wrong}));
      expect_failure(result, 2, {words.back(), "expected a whole number, 0 or more", wrong});
      EXPECT_LT(result.err.size(), 160U) << result.err;
    }
    expect_failure(run_qdelta(joined(words, {"18446744073709551616"})), 2, {words.back(), "too large"});
  }
  expect_failure(run_qdelta({"compare", "--out", "b", "--seeds", "1,-2"}), 2, {"expected a whole number", "-2"});
}

TEST(Demo, SaysHowToTrainAndGenerate) {
  const TemporaryFolder folder;
  const std::string out =
      run_well({"demo", "--steps", "20", "--seeds", "2", "--out", folder.file("demo"), "--threads", "1"}).out;
  for (const char* hint : {"qdelta train --text book.txt --out run --steps 500",
                           "qdelta generate --model run/checkpoints/step-00000500 --prompt \"The\" --stream"}) {
    EXPECT_TRUE(contains(out, hint)) << out;
  }
  for (const char* piece : {"mean of 2 seeds", "8 times", "Q-Delta", "Gated DeltaNet", "Linear attention"}) {
    EXPECT_TRUE(contains(out, piece)) << out;
  }
  for (const char* file : {"recall.svg", "q_delta-1/log.jsonl", "gated_delta-2/log.jsonl", "linear-2/log.jsonl"}) {
    EXPECT_TRUE(std::filesystem::exists(folder.file(std::string("demo/") + file))) << file;
  }
  EXPECT_TRUE(contains(run_well({"demo", "--help"}).out, "--threads INT=1"));
  expect_failure(run_qdelta({"demo", "--seeds", "0", "--out", folder.file("none")}), 1, {"seeds is 0"});
}

TEST(Help, DefaultsAreShown) {
  const std::string help = run_well({"train", "--help"}).out;
  EXPECT_TRUE(contains(help, "mpirun"));
  EXPECT_FALSE(contains(run_well({"compare", "--help"}).out, "mpirun"));  // has one process
  for (const char* piece : {"--steps INT=1000", "--rows INT=8", "--lr FLOAT=0.001", "--keep INT=2"}) {
    EXPECT_TRUE(contains(help, piece)) << piece;
  }
}

TEST(Help, MarksWhatIsRequiredAndShowsNoValuesOfFlags) {
  for (const Words& words : std::vector<Words>{{"op"}, {"tokenize"}, {"generate"}, {"chat"}, {"bench", "op"}}) {
    const std::string help = run_well(joined(words, {"--help"})).out;
    EXPECT_FALSE(contains(help, "{false}")) << help;
  }
  EXPECT_TRUE(contains(run_well({"op", "--help"}).out, "--qk-l2norm,--no-qk-l2norm  "));
  EXPECT_TRUE(contains(run_well({"op", "--help"}).out, "--in CASE REQUIRED"));
  EXPECT_TRUE(contains(run_well({"tokenize", "--help"}).out, "--out DIR REQUIRED"));
  EXPECT_TRUE(contains(run_well({"generate", "--help"}).out, "--model TEXT REQUIRED"));
  for (const char* command : {"train", "compare"}) {
    EXPECT_TRUE(contains(run_well({command, "--help"}).out, "Required, here or in --config")) << command;
  }
}

TEST(Help, OptionsGivenTwiceAreNamed) {
  expect_failure(run_qdelta({"train", "--steps", "3", "--steps", "4"}), 2, {"--steps is given 2 times (3, 4)"});
  expect_failure(run_qdelta({"bench", "op", "--batch", "3", "--batch", "3"}), 2,
                 {"--batch is given 2 times (3, 3)", "See qdelta bench op --help"});
}

TEST(Help, OfCompareHasOnlyWhatCountsThere) {
  const std::string help = run_well({"compare", "--help"}).out;
  EXPECT_FALSE(contains(help, "--rule TEXT")) << help;
  EXPECT_FALSE(contains(help, "--seed UINT")) << help;
  EXPECT_FALSE(contains(help, "Folder for checkpoints")) << help;
  expect_failure(run_qdelta({"compare", "--out", "b", "--rule", "delta"}), 1, {"--rule", "--rules"});
  expect_failure(run_qdelta({"compare", "--out", "b", "--seed", "3"}), 1, {"--seed", "--seeds"});
}

TEST(Help, UnknownOptionsAreNamedWithTheSubcommandToAsk) {
  for (const char* command :
       {"train", "generate", "chat", "perplexity", "logits", "tokenize", "plot", "demo", "analyze", "compare"}) {
    const RunResult result = run_qdelta({command, "--no-such-option"});
    EXPECT_EQ(result.status, 2) << command;
    EXPECT_TRUE(contains(result.err, std::string("See qdelta ") + command + " --help")) << result.err;
  }
}

}  // namespace
}  // namespace qdelta::testing
