#include "cli/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/run_file.h"
#include "cli/training_data.h"
#include "core/error.h"
#include "data/shard_format.h"
#include "data/shards.h"
#include "data/tokenizer.h"
#include "infer/state_format.h"
#include "io/filesystem_error.h"
#include "io/run_log.h"
#include "model/checkpoint.h"
#include "train/training_state.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 8;  // folders within folders

bool has_weights_in(const fs::path& folder) {
  return fs::exists(folder / "model.safetensors") || fs::exists(folder / "model.safetensors.index.json");
}

bool is_model(const fs::path& folder) { return fs::exists(folder / "config.json") && has_weights_in(folder); }

bool is_run(const fs::path& folder) {
  return fs::exists(folder / kRunFileName) || fs::exists(folder / kRunLogName) ||
         fs::is_directory(folder / "checkpoints");
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with(".")) entries.push_back(entry.path());
  }
  std::ranges::sort(entries);
  return entries;
}

class Verification {
 public:
  explicit Verification(const std::function<void(const Finding&)>& found) : found_(found) {}

  // Whether there was anything that it knows.
  bool visit(const fs::path& path, int depth = 0) {
    try {
      return visit_what_it_is(path, depth);
    } catch (const fs::filesystem_error& error) {  // what cannot be looked at does not keep the rest from being checked
      return check("other", path, [&]() -> Outcome { return {Result::damaged, reason_of(error)}; }), true;
    }
  }

 private:
  using Result = Finding::Result;
  using Outcome = std::pair<Result, std::string>;

  bool visit_what_it_is(const fs::path& path, int depth) {
    if (!fs::is_directory(path)) return visit_file(path);
    if (depth > 0 && (depth > kDeepest || fs::is_symlink(path))) return false;
    if (is_run(path)) return visit_run(path), true;
    if (is_model(path)) return visit_model(path), true;
    if (fs::exists(path / kShardIndexName)) return visit_shards(path), true;
    bool any = false;
    for (const fs::path& entry : sorted_entries(path)) any = visit(entry, depth + 1) || any;
    return any;
  }

  // Runs one check. What it throws is what is wrong.
  template <class Action>
  bool check(const char* kind, const fs::path& path, const Action& action) {
    Finding finding{.result = Result::ok, .kind = kind, .path = path.string(), .detail = ""};
    try {
      std::tie(finding.result, finding.detail) = action();
    } catch (const Error& error) {
      finding.result = error.status() == Status::unsupported ? Result::note : Result::damaged;
      finding.detail = error.what();
    } catch (const fs::filesystem_error& error) {
      finding.result = Result::damaged;
      finding.detail = reason_of(error);
    }
    found_(finding);
    return finding.result != Result::damaged;
  }

  static Outcome with_checksum(bool has_one, std::string detail) {
    return {has_one ? Result::ok : Result::no_checksum,
            has_one ? std::move(detail) : detail + "; it has no checksum, so that its values may be anything"};
  }

  bool visit_file(const fs::path& path) {
    if (path.extension() == ".qdt") return visit_shard(path), true;
    if (path.filename() == kRunLogName) return visit_log(path, 0), true;
    if (path.extension() == ".safetensors" || is_state(path)) return visit_safetensors(path), true;
    return false;
  }

  // A state may have any name.
  static bool is_state(const fs::path& path) {
    try {
      return SafetensorsFile::open(path.string()).metadata().contains("pending");
    } catch (const Error&) {
      return false;
    }
  }

  void visit_safetensors(const fs::path& path) {
    bool state = false;
    check(is_state(path) ? "state" : "tensors", path, [&]() -> Outcome {
      const SafetensorsFile file = SafetensorsFile::open(path.string());
      state = file.metadata().contains("pending");
      const bool sum = file.verify();
      if (!state) return with_checksum(sum, fmt::format("{} tensors", file.names().size()));
      const StateHeader header = read_state_header(file);
      static_cast<void>(state_token_ids(file, header, INT32_MAX));
      return with_checksum(sum, fmt::format("after {} tokens", header.info.tokens));
    });
  }

  void visit_shard(const fs::path& path) {
    check("shard", path, [&]() -> Outcome {
      const TokenShard shard = TokenShard::open(path.string());
      shard.verify();
      return {Result::ok, fmt::format("{} tokens in {} documents", shard.tokens(), shard.documents())};
    });
  }

  // Whether all of it is whole.
  bool visit_shards(const fs::path& folder) {
    std::vector<ShardEntry> entries;
    bool whole = check("shards", folder / kShardIndexName, [&]() -> Outcome {
      entries = read_shard_index(folder.string());
      const TokenDataset all = TokenDataset::open(folder.string());
      return {Result::ok, fmt::format("{} tokens in {} shards", all.tokens(), entries.size())};
    });
    for (const ShardEntry& entry : entries) {
      whole = check("shard", folder / entry.name,
                    [&]() -> Outcome {
                      const TokenShard shard = TokenShard::open((folder / entry.name).string());
                      shard.verify();
                      return {Result::ok, fmt::format("{} tokens in {} documents", shard.tokens(), shard.documents())};
                    }) &&
              whole;
    }
    visit_tokenizer(folder);
    return whole;
  }

  void visit_tokenizer(const fs::path& folder) {
    const bool has_one =
        std::ranges::any_of(std::vector{"qdelta_tokenizer.json", "tokenizer.json", "tokenizer.model", "vocab.json"},
                            [&](const char* name) { return fs::exists(folder / name); });
    if (!has_one) return;
    check("tokenizer", folder, [&]() -> Outcome {
      const auto tokenizer = load_tokenizer(folder.string());
      return {Result::ok,
              fmt::format("{} ids, fingerprint {:016x}", tokenizer->vocab_size(), tokenizer->fingerprint())};
    });
  }

  void visit_model(const fs::path& folder) {
    check("model", folder, [&]() -> Outcome {
      const ModelFiles model(folder.string());
      const bool sum = model.verify();
      return with_checksum(sum, fmt::format("{} parameters", model.layout().parameters()));
    });
    visit_tokenizer(folder);
  }

  void visit_checkpoint(const fs::path& folder) {
    check("checkpoint", folder,
          [&]() -> Outcome { return with_checksum(verify_checkpoint(folder.string()), "weights, moments and state"); });
    visit_tokenizer(folder);
  }

  // `newest`: the step of the newest checkpoint, which the log must reach.
  void visit_log(const fs::path& path, std::int64_t newest) {
    check("log", path, [&]() -> Outcome {
      const std::vector<RunRecord> records = read_run_log(path.string());
      std::int64_t step = 0;
      int lost = 0;
      for (const RunRecord& record : records) {
        if (record.step != step + 1) {
          fail(Status::corrupt, "{}: after step {} comes step {}", path.string(), step, record.step);
        }
        step = record.step;
        if (!std::isfinite(record.loss)) ++lost;
      }
      if (step < newest) {
        fail(Status::corrupt, "{} ends at step {}, but there is a checkpoint of step {}", path.string(), step, newest);
      }
      return {Result::ok, fmt::format("{} steps", step) + (lost > 0 ? fmt::format(", {} without a loss", lost) : "")};
    });
  }

  void visit_run(const fs::path& folder) {
    std::optional<RunFile> file;
    if (fs::exists(folder / kRunFileName)) {
      check("settings", folder / kRunFileName, [&]() -> Outcome {
        file = RunFile::read(folder.string());
        return {Result::ok, fmt::format("{} settings", file->settings.size())};
      });
    }
    if (fs::exists(folder / "config.json")) {
      check("config", folder / "config.json", [&]() -> Outcome {
        const ParameterLayout layout(load_config((folder / "config.json").string()));
        return {Result::ok, fmt::format("{} parameters", layout.parameters())};
      });
    }
    std::int64_t newest = 0;
    if (fs::is_directory(folder / "checkpoints")) newest = visit_checkpoints(folder / "checkpoints");
    if (fs::exists(folder / kRunLogName) || newest > 0) visit_log(folder / kRunLogName, newest);
    visit_data(folder, file);
  }

  // The step of the newest.
  std::int64_t visit_checkpoints(const fs::path& folder) {
    std::int64_t newest = 0;
    for (const fs::path& path : sorted_entries(folder)) {
      if (const auto step = step_of_checkpoint(path.string())) {
        newest = std::max(newest, *step);
        visit_checkpoint(path);
      } else {
        check("other", path, [&]() -> Outcome { return {Result::note, "no checkpoint: set aside, or not finished"}; });
      }
    }
    return newest;
  }

  // The data of a run, and whether it still is what the run was started with.
  void visit_data(const fs::path& folder, const std::optional<RunFile>& file) {
    static const RunFile::Section kNone;
    const bool known = file && file->sections.contains("data");
    const RunFile::Section& prints = known ? file->sections.at("data") : kNone;
    const auto setting = [&](const char* name) {
      return file && file->settings.contains(name) ? file->settings.at(name) : std::vector<std::string>();
    };
    for (const char* part : {"train", "validation"}) {
      const fs::path own = folder / "data" / part;
      if (!fs::exists(own / kShardIndexName)) continue;
      if (visit_shards(own)) compare(prints, part, {own.string()});
    }
    if (const auto text = setting("text"); !text.empty() && prints.contains("text")) visit_text(text[0], prints);
    std::vector<std::string> plain;
    std::size_t number = 0;
    for (const std::string& data : setting("data")) {
      const WeightedPath path = weighted_path(data);
      ++number;
      if (path.weight) {
        compare(prints, fmt::format("train-{}", number), {path.path});
      } else {
        plain.push_back(path.path);
      }
    }
    if (!plain.empty()) compare(prints, "train", plain);
    if (const auto held_out = setting("validation"); !held_out.empty()) compare(prints, "validation", held_out);
  }

  void compare(const RunFile::Section& prints, const std::string& name, const std::vector<std::string>& paths) {
    const auto expected = prints.find(name);
    if (expected == prints.end()) return;
    check("data", paths.front(), [&]() -> Outcome {
      for (const std::string& path : paths) {
        if (!fs::exists(path)) return {Result::note, fmt::format("{} is not here: it was not checked", path)};
      }
      const TokenDataset dataset = TokenDataset::open(paths);
      dataset.verify();
      const std::string now = fingerprint_of(dataset);
      if (now != expected->second) {
        fail(Status::corrupt, "the run was started with {}, but there is {} now", expected->second, now);
      }
      return {Result::ok, fmt::format("{}: {}", name, now)};
    });
  }

  void visit_text(const std::string& path, const RunFile::Section& prints) {
    check("text", path, [&]() -> Outcome {
      if (!fs::exists(path)) return {Result::note, "not here: it was not checked; the run has its tokens"};
      const std::string now = fingerprint_of_text(path);
      if (now == prints.at("text")) return {Result::ok, now};
      return {Result::note,
              fmt::format("changed since the run began ({}, then {}); the run has its tokens", now, prints.at("text"))};
    });
  }

  const std::function<void(const Finding&)>& found_;
};

}  // namespace

const char* name_of(Finding::Result result) {
  using Result = Finding::Result;
  switch (result) {
    case Result::ok:
      return "ok";
    case Result::no_checksum:
      return "no checksum";
    case Result::note:
      return "note";
    case Result::damaged:
      break;
  }
  return "damaged";
}

void verify_path(const std::string& path, const std::function<void(const Finding&)>& found) {
  if (!fs::exists(path)) fail(Status::io, "cannot read {}: there is no such file or folder", path);
  if (Verification(found).visit(path)) return;
  fail(Status::invalid_argument, "{} is no model, state, token shard or run, and holds none: there is nothing to check",
       path);
}

}  // namespace qdelta
