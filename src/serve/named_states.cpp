#include "serve/named_states.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "infer/state_file.h"
#include "io/safetensors.h"
#include "serve/api_error.h"
#include "serve/state_name.h"

namespace qdelta::serve {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStateEnding = ".state";
constexpr std::size_t kMostOfAHeader = std::size_t{1} << 20U;  // beside its tensors, in an upload

// Clients know a state by its name, not by where it lies.
std::string without_path(std::string message, const std::string& path, const std::string& name) {
  const std::size_t at = message.find(path);
  return at == std::string::npos ? message : message.replace(at, path.size(), fmt::format("state '{}'", name));
}

bool all_finite(const ModelStates& states) {
  for (std::size_t pool = 0; pool < states.pools().size(); ++pool) {
    const ConstTensorView view = states.slot_of(pool, 0);
    const auto* values = reinterpret_cast<const float*>(view.data);
    if (!std::all_of(values, values + view.shape.elements(), [](float value) { return std::isfinite(value); })) {
      return false;
    }
  }
  return true;
}

[[noreturn]] void no_such_state(const std::string& name) {
  throw ApiError(404, fmt::format("there is no state '{}'", name), "state");
}

}  // namespace

NamedStates::Room::~Room() {
  const std::lock_guard lock(states_.mutex_);
  states_.reserved_.erase(states_.reserved_.find(name_));
}

NamedStates::NamedStates(const StateLimits& limits, const LanguageModel& model)
    : limits_(limits), model_(model), model_hash_(model_hash(model)) {
  const ModelStates one(model.config(), 1);
  constexpr std::size_t kOfATensor = 160;  // its name, shape and place
  constexpr std::size_t kOfAFile = 1024;
  state_bytes_ = one.bytes();
  file_bytes_ = state_bytes_ + kOfAFile + kOfATensor * one.pools().size();
  std::error_code error;
  fs::create_directories(limits_.folder, error);
  if (error) fail(Status::io, "cannot make the folder {}: {}", limits_.folder, error.message());
}

std::size_t NamedStates::largest_file() const { return state_bytes_ + kMostOfAHeader; }

std::string NamedStates::path_of(const std::string& name) const {
  return fmt::format("{}/{}{}", limits_.folder, name, kStateEnding);
}

NamedStates::File NamedStates::find(const std::string& name) const {
  check_state_name(name, "state");
  struct stat status {};
  if (::lstat(path_of(name).c_str(), &status) != 0 || !S_ISREG(status.st_mode)) no_such_state(name);
  return {.bytes = static_cast<std::size_t>(status.st_size), .saved = status.st_mtime};
}

std::map<std::string, NamedStates::File> NamedStates::files() const {
  std::map<std::string, File> found;
  std::error_code error;
  for (fs::directory_iterator each(limits_.folder, error), end; !error && each != end; each.increment(error)) {
    std::string name = each->path().filename().string();
    if (!name.ends_with(kStateEnding)) continue;
    name.resize(name.size() - kStateEnding.size());
    if (!is_state_name(name)) continue;
    try {
      const File file = find(name);
      found.emplace(std::move(name), file);
    } catch (const ApiError&) {  // it has just gone, or is no file
      continue;
    }
  }
  if (error) throw ApiError(500, fmt::format("the folder of the states cannot be read: {}", error.message()));
  return found;
}

NamedStates::Info NamedStates::info_of(const std::string& name, const File& file) const {
  Info info{.name = name, .tokens = 0, .saved = file.saved, .bytes = file.bytes, .unusable = {}};
  try {
    const SavedState read = state_info(path_of(name), model_hash_, model_.config().vocab_size);
    info.tokens = read.tokens + (read.pending < 0 ? 0 : 1);
  } catch (const Error& error) {
    info.unusable = without_path(error.what(), path_of(name), name);
  }
  return info;
}

std::vector<NamedStates::Info> NamedStates::list() const {
  std::vector<Info> all;
  for (const auto& [name, file] : files()) all.push_back(info_of(name, file));
  return all;
}

NamedStates::Info NamedStates::info(const std::string& name) const { return info_of(name, find(name)); }

MappedFile NamedStates::file(const std::string& name) const {
  static_cast<void>(find(name));
  try {
    return MappedFile(path_of(name));
  } catch (const Error&) {
    no_such_state(name);
  }
}

std::shared_ptr<const StateCopy> NamedStates::load(const std::string& name) const {
  static_cast<void>(find(name));
  std::shared_ptr<StateCopy> state = blank();
  try {
    state->info = load_state(path_of(name), model_, state->states, 0, model_hash_);
  } catch (const Error& error) {
    throw ApiError(400, without_path(error.what(), path_of(name), name), "state");
  }
  return state;
}

std::shared_ptr<const StateCopy> NamedStates::parse(std::string_view bytes) const {
  std::shared_ptr<StateCopy> state = blank();
  try {
    const SafetensorsFile file = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "the upload");
    state->info = load_state(file, model_, state->states, 0, model_hash_);
  } catch (const Error& error) {
    throw ApiError(400, error.what());
  }
  if (!all_finite(state->states)) throw ApiError(400, "the upload has values that are not finite");
  return state;
}

std::shared_ptr<StateCopy> NamedStates::blank() const {
  return std::make_shared<StateCopy>(StateCopy{.states = ModelStates(model_.config(), 1), .info = {}});
}

std::unique_ptr<NamedStates::Room> NamedStates::reserve(const std::string& name) {
  check_state_name(name, "name");
  const std::map<std::string, File> present = files();
  const std::lock_guard lock(mutex_);
  std::set<std::string> names{name};
  std::size_t bytes = file_bytes_;
  for (const auto& [other, file] : present) {
    names.insert(other);
    if (other != name) bytes += file.bytes;
  }
  for (const auto& [other, size] : reserved_) {
    names.insert(other);
    bytes += size;
  }
  if (names.size() > limits_.most) {
    throw ApiError(
        507, fmt::format("there are {} states, as many as this server keeps: delete one first", names.size() - 1));
  }
  if (bytes > limits_.disk) {
    throw ApiError(507,
                   fmt::format("a state takes {} bytes, and of the {} that this server has for states {} are taken: "
                               "delete one first",
                               file_bytes_, limits_.disk, bytes - file_bytes_));
  }
  reserved_.emplace(name, file_bytes_);
  return std::make_unique<Room>(*this, name);
}

NamedStates::Info NamedStates::save(const Room& room, const StateCopy& state) const {
  const std::string path = path_of(room.name());
  try {
    save_state(path, model_, state.states, 0, state.info, {.model_hash = model_hash_, .token_ids = {}});
  } catch (const Error& error) {
    throw ApiError(507, without_path(error.what(), path, room.name()));
  }
  return info(room.name());
}

void NamedStates::remove(const std::string& name) const {
  static_cast<void>(find(name));
  std::error_code error;
  if (!fs::remove(path_of(name), error) && !error) no_such_state(name);
  if (error) throw ApiError(500, fmt::format("state '{}' cannot be removed: {}", name, error.message()));
}

}  // namespace qdelta::serve
