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
       {"--config",      "--out",        "--resume",    "--threads",    "--seed",   "--text",         "--data",
        "--validation",  "--mqar",       "--tokenizer", "--seq-len",    "--rows",   "--model-config", "--rule",
        "--hidden-size", "--layers",     "--steps",     "--accumulate", "--lr",     "--warmup",       "--recompute",
        "--eval-every",  "--save-every", "--keep",      "--patience",   "Examples", "Ctrl-C"}},
      {"generate",
       {"--model", "--prompt", "--prompt-file", "--max-tokens", "--temperature", "--top-k", "--top-p", "--min-p",
        "--repetition-penalty", "--seed", "--stop", "--threads", "--load-state", "--save-state", "--num-samples",
        "--stream", "--no-bos", "Examples"}},
      {"chat", {"--model", "--max-tokens", "--temperature", "--load-state", "--save-state"}},
      {"serve",
       {"--model", "--host", "--port", "--api-key", "--max-batch", "--max-queue", "--max-tokens", "--max-prompt",
        "--max-request", "--max-sequences", "--max-body", "--grace", "--device", "--threads", "/v1/completions",
        "curl"}},
      {"perplexity", {"--model", "--data", "--limit", "--tokenizer", "--threads"}},
      {"eval",
       {"--model",        "--tasks",         "--data",    "--limit",     "--batch",   "--bos",     "--max-length",
        "--out",          "--log-examples",  "--restart", "--dry-run",   "--lengths", "--samples", "--seed",
        "--ruler-data",   "--recall-length", "--mqar",    "--bootstrap", "--device",  "--dtype",   "--threads",
        "lambada_openai", "niah_single_3",   "Examples",  "Ctrl-C"}},
      {"logits", {"--model", "--in", "--out", "--grads", "--threads", "Example"}},
      {"tokenize",
       {"--tokenizer", "--out", "--format", "--text-key", "--paragraphs", "--document-separator", "--append-eos",
        "--prepend-bos", "--shard-tokens", "--threads", "--force", "Examples"}},
      {"plot", {"--out", "--y", "--terminal"}},
      {"demo", {"--help"}},
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

TEST(Help, DefaultsAreShown) {
  const std::string help = run_well({"train", "--help"}).out;
  for (const char* piece : {"--steps INT=1000", "--rows INT=8", "--lr FLOAT=0.001", "--keep INT=2"}) {
    EXPECT_TRUE(contains(help, piece)) << piece;
  }
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
