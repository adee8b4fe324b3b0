#include "serve/state_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "infer/state_file.h"
#include "io/warn.h"

namespace qdelta::serve {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostWaiting = 8;
constexpr const char* kEnding = ".safetensors";

void complain(const Error& damage) {
  warn(fmt::format("the cache has removed a file that is no state, or damaged: {}", damage.what()));
}

}  // namespace

StateStore::StateStore(const std::string& folder, const LanguageModel& model)
    : model_(model), model_hash_(model_hash(model)), folder_(fmt::format("{}/{:016x}", folder, model_hash_)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(Status::io, "cannot make the folder {}: {}", folder_, error.message());
  thread_ = std::thread([this] { write(); });
}

StateStore::~StateStore() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::vector<StateStore::Entry> StateStore::entries() const {
  std::vector<std::pair<fs::file_time_type, Entry>> found;
  for (const fs::directory_entry& file : fs::directory_iterator(folder_)) {
    if (file.path().extension() != kEnding) continue;
    std::error_code error;
    try {
      Entry entry{.name = file.path().filename().string(),
                  .tokens = token_ids_of_state(file.path().string(), model_hash_, model_.config().vocab_size),
                  .bytes = file.file_size()};
      if (entry.tokens.empty()) continue;  // somebody's own
      found.emplace_back(file.last_write_time(error), std::move(entry));
    } catch (const Error& damage) {
      complain(damage);
      fs::remove(file.path(), error);
    }
  }
  std::ranges::stable_sort(found, {}, [](const auto& each) { return each.first; });
  std::vector<Entry> entries;
  for (auto& [time, entry] : found) entries.push_back(std::move(entry));
  return entries;
}

StateStore::Entry StateStore::add(std::span<const std::int32_t> tokens, std::unique_ptr<const ModelStates> state,
                                  bool patience) {
  Entry entry{.name = fmt::format("{:016x}-{}{}", hash_tokens(0, tokens), tokens.size(), kEnding),
              .tokens = {tokens.begin(), tokens.end()},
              .bytes = state->bytes() + tokens.size_bytes()};
  {
    std::unique_lock lock(mutex_);
    if (!patience && waiting_.size() >= kMostWaiting) return {};
    changed_.wait(lock, [this] { return waiting_.size() < kMostWaiting; });
    waiting_.push_back({.name = entry.name, .tokens = entry.tokens, .state = std::move(state)});
  }
  changed_.notify_all();
  return entry;
}

void StateStore::write() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Task task = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = task.name;
    lock.unlock();
    try {
      const SavedState info{.tokens = static_cast<std::int64_t>(task.tokens.size()),
                            .token_hash = hash_tokens(0, task.tokens)};
      save_state(path_of(task.name), model_, *task.state, 0, info,
                 {.model_hash = model_hash_, .token_ids = task.tokens});
    } catch (const std::exception& error) {  // a full disk is no reason not to serve; the file will not be found
      warn(fmt::format("a state could not be kept: {}", error.what()));
    }
    lock.lock();
    writing_.clear();
    changed_.notify_all();
  }
}

void StateStore::settle(const std::string& name) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return writing_ != name && std::ranges::none_of(waiting_, [&](const Task& task) { return task.name == name; });
  });
}

bool StateStore::load(const std::string& name, std::span<const std::int32_t> tokens, ModelStates& states,
                      std::int64_t slot) {
  settle(name);
  const std::string path = path_of(name);
  try {
    const std::vector<std::int32_t> ids = token_ids_of_state(path, model_hash_, model_.config().vocab_size);
    if (!std::ranges::equal(ids, tokens)) return false;
    static_cast<void>(load_state(path, model_, states, slot, model_hash_));
  } catch (const Error& damage) {
    complain(damage);
    return false;
  }
  std::error_code error;
  fs::last_write_time(path, fs::file_time_type::clock::now(), error);
  return true;
}

void StateStore::remove(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const Task& task) { return task.name == name; });
  }
  changed_.notify_all();
  settle(name);
  std::error_code error;
  fs::remove(path_of(name), error);
}

}  // namespace qdelta::serve
