#include "train/training_state.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "data/tokenizer.h"
#include "io/atomic_file.h"
#include "io/parse_json.h"
#include "io/regular_file.h"
#include "io/safetensors.h"
#include "model/checkpoint.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr const char* kUnfinished = ".unfinished";

fs::path checkpoints_of(const std::string& run) { return fs::path(run) / "checkpoints"; }

// Steps of the complete checkpoints, oldest first.
std::vector<std::pair<std::int64_t, fs::path>> complete_checkpoints(const std::string& run) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints_of(run), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    // More than 18 digits are no step of ours, and would not fit.
    const bool digits = name.size() > 5 && name.size() <= 5 + 18 &&
                        std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (name.rfind(kPrefix, 0) == 0 && digits && fs::exists(it->path() / "state.json")) {
      found.emplace_back(std::stoll(name.substr(5)), it->path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Makes a rename in this folder survive a power cut.
void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

void remove_leftovers(const std::string& run) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(checkpoints_of(run), error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == kUnfinished) leftovers.push_back(it->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
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
  return state;
}

ConstTensorView flat_view(std::span<const float> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), DType::f32, {static_cast<std::int64_t>(values.size())}};
}

void read_flat(const SafetensorsFile& file, const char* name, std::span<float> to) {
  const ConstTensorView view = file.view(name);
  if (view.dtype != DType::f32 || view.shape.elements() != static_cast<std::int64_t>(to.size())) {
    fail(Status::corrupt, "{}: '{}' does not fit this model", file.path(), name);
  }
  std::memcpy(to.data(), view.data, to.size_bytes());
}

void write_checkpoint(const fs::path& folder, const LanguageModel& model, OptimizerState& optimizer,
                      const TrainingState& state, const std::string& tokenizer) {
  save_model(folder.string(), model);
  if (!tokenizer.empty()) save_tokenizer(*load_tokenizer(tokenizer), folder.string());
  const std::vector<NamedTensor> moments{{"m", flat_view(optimizer.m())}, {"v", flat_view(optimizer.v())}};
  write_safetensors((folder / "optimizer.safetensors").string(), moments, {});
  const std::string text = to_json(state).dump(1) + "\n";
  AtomicFile file((folder / "state.json").string());
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

// A checkpoint loses its name first: one that is half deleted must not look complete.
void remove_checkpoint(const fs::path& folder, const std::string& mark = "") {
  std::error_code error;  // a checkpoint too many does no harm
  const fs::path unfinished = folder.string() + mark + kUnfinished;
  fs::rename(folder, unfinished, error);
  if (!error) fs::remove_all(unfinished, error);
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

std::optional<std::string> newest_checkpoint(const std::string& run) {
  const auto found = complete_checkpoints(run);
  if (found.empty()) return std::nullopt;
  return found.back().second.string();
}

std::string save_checkpoint(const std::string& run, const LanguageModel& model, OptimizerState& optimizer,
                            const TrainingState& state, int keep, const std::string& tokenizer) {
  check_keep(keep);
  remove_leftovers(run);
  const fs::path folder = checkpoints_of(run) / fmt::format("{}{:08d}", kPrefix, state.step);
  const fs::path unfinished = folder.string() + kUnfinished;
  std::error_code error;
  try {
    write_checkpoint(unfinished, model, optimizer, state, tokenizer);
  } catch (...) {
    fs::remove_all(unfinished, error);  // a full disk has better uses for the space
    throw;
  }
  remove_checkpoint(folder, ".old");  // the same step saved before, by a run that was resumed from further back
  fs::rename(unfinished, folder, error);
  if (error) fail(Status::io, "cannot name the checkpoint {}: {}", folder.string(), error.message());
  sync_folder(checkpoints_of(run));

  auto all = complete_checkpoints(run);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
    remove_checkpoint(all[i].second);
  }
  return folder.string();
}

TrainingState load_checkpoint(const std::string& folder, LanguageModel& model, OptimizerState& optimizer) {
  const auto loaded = load_model(folder);
  require(loaded->layout().size == model.layout().size && same_model(loaded->config(), model.config()),
          "the checkpoint {} is of another model than the one to train", folder);
  std::copy(loaded->parameters().begin(), loaded->parameters().end(), model.parameters().begin());
  const SafetensorsFile moments = SafetensorsFile::open((fs::path(folder) / "optimizer.safetensors").string());
  read_flat(moments, "m", optimizer.m());
  read_flat(moments, "v", optimizer.v());
  const fs::path path = fs::path(folder) / "state.json";
  const std::string text = read_text_file(path.string(), kSmallJson.bytes);
  try {
    TrainingState state = from_json(parse_json(text, "it", kSmallJson));
    optimizer.updates = state.updates;
    return state;
  } catch (const Error& error) {
    fail(error.status(), "{} is damaged: {}", path.string(), error.what());
  } catch (const nlohmann::json::exception& error) {
    fail(Status::corrupt, "{} is damaged: {}", path.string(), json_complaint(error));
  }
}

}  // namespace qdelta
