// `qdelta verify`: is anything damaged?
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/verification.h"

namespace qdelta {
namespace {

struct VerifyFlags {
  std::vector<std::string> paths;
  bool json = false;
};

void run_verify(const VerifyFlags& flags) {
  std::int64_t damaged = 0;
  std::int64_t checked = 0;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const std::string& path : flags.paths) {
    verify_path(path, [&](const Finding& finding) {
      ++checked;
      if (finding.result == Finding::Result::damaged) ++damaged;
      if (flags.json) {
        list.push_back({{"result", name_of(finding.result)},
                        {"kind", finding.kind},
                        {"path", finding.path},
                        {"detail", finding.detail}});
        return;
      }
      fmt::print("{:<12} {:<11} {}: {}\n", name_of(finding.result), finding.kind, finding.path, finding.detail);
      std::fflush(stdout);  // reading a large file takes a while
    });
  }
  if (flags.json) {
    // A path need not be UTF-8; what is not is shown as U+FFFD.
    const nlohmann::ordered_json report{{"checked", checked}, {"damaged", damaged}, {"findings", list}};
    fmt::print("{}\n", report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{} checked, {} damaged\n", checked, damaged);
  }
  if (damaged > 0) throw CLI::RuntimeError(1);
}

}  // namespace

void add_verify(CLI::App& app) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command = app.add_subcommand("verify", "Look for damage in models, states, token shards and runs");
  command->add_option("paths", flags->paths, "Files and folders; of a folder all that it holds")
      ->required()
      ->option_text("PATH...");
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Reads every byte and compares it with the checksums that qdelta writes. Changes nothing. One line for each "
      "thing:\n"
      "  ok           it is what was written\n"
      "  no checksum  it can be read, but was written by another program or by qdelta 0.1: its values may be anything\n"
      "  note         something to know: data that is elsewhere now, a text that has changed since the run began\n"
      "  damaged      what is wrong with it\n"
      "The exit status is 1 where something is damaged.\n"
      "\n"
      "Of a run: run.toml, config.json, every checkpoint (weights, moments, state, tokenizer), the log, and whether "
      "the\n"
      "data still has the fingerprints that it was started with. `qdelta train --resume` goes on from the newest\n"
      "checkpoint that is whole; a model is best fetched again; shards are made again by `qdelta tokenize --force`.\n"
      "\n"
      "Examples:\n"
      "  qdelta verify run\n"
      "  qdelta verify run/checkpoints/step-00000500 state.safetensors tokens/\n"
      "  qdelta verify --json comparison | jq '.findings[] | select(.result == \"damaged\")'");
  command->callback([flags] { run_verify(*flags); });
}

}  // namespace qdelta
