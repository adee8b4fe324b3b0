#include "train/training_state.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <vector>

#include "core/hash.h"
#include "data/tokenizer.h"
#include "io/atomic_file.h"
#include "io/folders.h"
#include "io/parse_json.h"
#include "io/regular_file.h"
#include "io/safetensors.h"
#include "model/checkpoint.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr const char* kAverage = "ema";
constexpr const char* kUnfinished = ".unfinished";
constexpr const char* kDamaged = ".damaged";

fs::path checkpoints_of(const std::string& run) { return fs::path(run) / "checkpoints"; }

// Steps of the complete checkpoints, oldest first.
std::vector<std::pair<std::int64_t, fs::path>> complete_checkpoints(const std::string& run) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints_of(run), error), end; !error && it != end; it.increment(error)) {
    const std::optional<std::int64_t> step = step_of_checkpoint(it->path().string());
    if (step && fs::exists(it->path() / "state.json")) found.emplace_back(*step, it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void remove_unfinished(const std::string& run) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(checkpoints_of(run), error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == kUnfinished) leftovers.push_back(it->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

// Of everything that state.json says.
std::string checksum_of(const nlohmann::ordered_json& state) {
  return fmt::format("{:016x}", hash_texts({state.dump()}));
}

nlohmann::ordered_json to_json(const TrainingState& state) {
  return {{"step", state.step},
          {"tokens", state.tokens},
          {"updates", state.updates},
          {"data_position", state.data_position},
          {"skipped", state.skipped},
          {"seconds", state.seconds},
          {"best_validation", state.best_validation},
          {"evaluations_since_best", state.evaluations_since_best},
          {"recipe", state.recipe}};
}

TrainingState from_json(const nlohmann::json& json) {
  TrainingState state;
  json.at("step").get_to(state.step);
  json.at("tokens").get_to(state.tokens);
  json.at("updates").get_to(state.updates);
  json.at("data_position").get_to(state.data_position);
  json.at("skipped").get_to(state.skipped);
  json.at("seconds").get_to(state.seconds);
  json.at("best_validation").get_to(state.best_validation);
  json.at("evaluations_since_best").get_to(state.evaluations_since_best);
  json.at("recipe").get_to(state.recipe);
  for (const char* key : {"step", "tokens", "updates", "skipped", "evaluations_since_best"}) {
    if (json.at(key).get<std::int64_t>() < 0) fail(Status::corrupt, "'{}' is negative", key);
  }
  // Checkpoints of version 0.1 have none.
  if (json.size() > to_json(state).size() && json.value("xxh3", "") != checksum_of(to_json(state))) {
    fail(Status::corrupt, "what it says does not have the checksum 'xxh3'");
  }
  return state;
}

ConstTensorView flat_view(std::span<const float> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), DType::f32, {static_cast<std::int64_t>(values.size())}};
}

void write_checkpoint(const fs::path& folder, const LanguageModel& model, OptimizerState& optimizer,
                      const TrainingState& state, const std::string& tokenizer) {
  save_model(folder.string(), model);
  if (!tokenizer.empty()) save_tokenizer(*load_tokenizer(tokenizer), folder.string());
  if (optimizer.has_average) {
    LanguageModel averaged(model.config());
    std::copy(optimizer.average().begin(), optimizer.average().end(), averaged.parameters().begin());
    const std::string ema = (folder / kAverage).string();
    save_model(ema, averaged);
    if (!tokenizer.empty()) save_tokenizer(*load_tokenizer(tokenizer), ema);
  }
  const std::vector<NamedTensor> moments{{"m", flat_view(optimizer.m())}, {"v", flat_view(optimizer.v())}};
  write_safetensors((folder / "optimizer.safetensors").string(), moments, {});
  nlohmann::ordered_json json = to_json(state);
  json["xxh3"] = checksum_of(to_json(state));
  write_whole((folder / "state.json").string(), json.dump(1) + "\n");
}

// A checkpoint loses its name first, also on disk: one that is half deleted must not look complete.
void remove_checkpoint(const fs::path& folder) {
  std::error_code error;  // a checkpoint too many does no harm
  const fs::path unfinished = folder.string() + kUnfinished;
  fs::rename(folder, unfinished, error);
  if (error) return;
  sync_folder(folder.parent_path().string());
  fs::remove_all(unfinished, error);
}

// Gives a finished checkpoint its name. One of the same step, of a run that was resumed from further back, changes
// places with it, so that there is one at every moment.
void name_checkpoint(const fs::path& unfinished, const fs::path& folder) {
  if (fs::exists(folder) && ::renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(folder.parent_path().string());
    std::error_code error;
    fs::remove_all(unfinished, error);
    return;
  }
  // There is none, or the file system cannot exchange names.
  std::error_code error;
  const fs::path old = folder.string() + ".old" + kUnfinished;
  if (fs::exists(folder)) fs::rename(folder, old, error);
  fs::rename(unfinished, folder, error);
  if (error) fail(Status::io, "cannot name the checkpoint {}: {}", folder.string(), error.message());
  sync_folder(folder.parent_path().string());
  fs::remove_all(old, error);
}

SafetensorsFile open_moments(const fs::path& folder, std::int64_t size) {
  SafetensorsFile file = SafetensorsFile::open((folder / "optimizer.safetensors").string());
  for (const char* name : {"m", "v"}) {
    const bool fits =
        file.contains(name) && file.view(name).dtype == DType::f32 && file.view(name).shape.elements() == size;
    if (!fits) fail(Status::corrupt, "{}: '{}' is missing or does not fit this model", file.path(), name);
  }
  return file;
}

void read_flat(const SafetensorsFile& file, const char* name, std::span<float> to) {
  std::memcpy(to.data(), file.view(name).data, to.size_bytes());
}

TrainingState read_state(const fs::path& folder) {
  const fs::path path = folder / "state.json";
  const std::string text = read_text_file(path.string(), kSmallJson.bytes);
  try {
    return from_json(parse_json(text, "it", kSmallJson));
  } catch (const Error& error) {
    fail(error.status(), "{} is damaged: {}", path.string(), error.what());
  } catch (const nlohmann::json::exception& error) {
    fail(Status::corrupt, "{} is damaged: {}", path.string(), json_complaint(error));
  }
}

bool has_all_files(const fs::path& folder) {
  const bool weights = fs::exists(folder / "model.safetensors") || fs::exists(folder / "model.safetensors.index.json");
  return weights && fs::exists(folder / "config.json") && fs::exists(folder / "optimizer.safetensors") &&
         fs::exists(folder / "state.json");
}

void set_aside(const fs::path& folder) {
  std::error_code error;
  const fs::path aside = folder.string() + kDamaged;
  fs::remove_all(aside, error);  // of an earlier time
  fs::rename(folder, aside, error);
  if (error) fail(Status::io, "cannot rename {}, which is damaged: {}", folder.string(), error.message());
  sync_folder(folder.parent_path().string());
}

// Which ids have a role is the tokenizer's business: it changes no number of the model.
bool same_model(ModelConfig one, const ModelConfig& other) {
  one.bos_token_id = other.bos_token_id;
  one.eos_token_id = other.eos_token_id;
  one.pad_token_id = other.pad_token_id;
  return config_to_json(one) == config_to_json(other);
}

}  // namespace

void check_keep(int keep) { require(keep >= 1, "keep is {}, but a run keeps at least 1 checkpoint", keep); }

std::optional<std::int64_t> step_of_checkpoint(const std::string& folder) {
  const std::string name = fs::path(folder).filename().string();
  const std::size_t digits = name.size() - std::min(name.size(), std::strlen(kPrefix));
  // More than 18 digits are no step of ours, and would not fit.
  if (!name.starts_with(kPrefix) || digits == 0 || digits > 18) return std::nullopt;
  if (name.find_first_not_of("0123456789", std::strlen(kPrefix)) != std::string::npos) return std::nullopt;
  return std::stoll(name.substr(std::strlen(kPrefix)));
}

std::optional<std::string> newest_checkpoint(const std::string& run) {
  const auto found = complete_checkpoints(run);
  if (found.empty()) return std::nullopt;
  return found.back().second.string();
}

std::string save_checkpoint(const std::string& run, const LanguageModel& model, OptimizerState& optimizer,
                            const TrainingState& state, int keep, const std::string& tokenizer) {
  check_keep(keep);
  make_folders(checkpoints_of(run).string());
  remove_unfinished(run);
  const fs::path folder = checkpoints_of(run) / fmt::format("{}{:08d}", kPrefix, state.step);
  const fs::path unfinished = folder.string() + kUnfinished;
  std::error_code error;
  try {
    write_checkpoint(unfinished, model, optimizer, state, tokenizer);
  } catch (...) {
    fs::remove_all(unfinished, error);  // a full disk has better uses for the space
    throw;
  }
  name_checkpoint(unfinished, folder);

  tidy_checkpoints(run, keep);
  return folder.string();
}

void tidy_checkpoints(const std::string& run, int keep) {
  check_keep(keep);
  remove_unfinished(run);
  const auto all = complete_checkpoints(run);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
    remove_checkpoint(all[i].second);
  }
}

TrainingState load_checkpoint(const std::string& folder, LanguageModel& model, OptimizerState& optimizer) {
  const auto load = [&](const std::string& from) {
    auto loaded = load_model(from);
    require(loaded->layout().size == model.layout().size && same_model(loaded->config(), model.config()),
            "the checkpoint {} is of another model than the one to train", from);
    return loaded;
  };
  const auto loaded = load(folder);
  const auto averaged = optimizer.has_average ? load((fs::path(folder) / kAverage).string()) : nullptr;
  const SafetensorsFile moments = open_moments(folder, model.layout().size);
  moments.verify();
  TrainingState state = read_state(folder);
  std::copy(loaded->parameters().begin(), loaded->parameters().end(), model.parameters().begin());
  if (averaged) std::copy(averaged->parameters().begin(), averaged->parameters().end(), optimizer.average().begin());
  read_flat(moments, "m", optimizer.m());
  read_flat(moments, "v", optimizer.v());
  optimizer.updates = state.updates;
  return state;
}

bool verify_checkpoint(const std::string& folder) {
  const ModelFiles model(folder);
  const bool weights = model.verify();
  const bool moments = open_moments(folder, model.layout().size).verify();
  const std::string ema = (fs::path(folder) / kAverage).string();
  const bool average = !fs::exists(ema) || ModelFiles(ema).verify();
  static_cast<void>(read_state(folder));
  return weights && moments && average;
}

ResumedCheckpoint load_newest_checkpoint(const std::string& run, LanguageModel& model, OptimizerState& optimizer,
                                         const std::function<void(const std::string&)>& say) {
  auto all = complete_checkpoints(run);
  require(!all.empty(), "there is no checkpoint in {}", run);
  std::vector<std::pair<fs::path, std::string>> damaged;
  std::exception_ptr newest;
  for (; !all.empty(); all.pop_back()) {
    const fs::path& folder = all.back().second;
    try {
      ResumedCheckpoint found{folder.string(), load_checkpoint(folder.string(), model, optimizer)};
      for (const auto& [path, why] : damaged) {
        set_aside(path);
        say(fmt::format("{}\n{} is damaged; it is called {}{} now, and the run goes on from {}.", why,
                        path.filename().string(), path.filename().string(), kDamaged, folder.filename().string()));
      }
      return found;
    } catch (const Error& error) {
      // A file that is there and cannot be read may be readable for somebody else, or tomorrow.
      if (error.status() == Status::io && has_all_files(folder)) throw;
      if (!newest) newest = std::current_exception();
      damaged.emplace_back(folder, error.what());
    }
  }
  std::rethrow_exception(newest);
}

}  // namespace qdelta
