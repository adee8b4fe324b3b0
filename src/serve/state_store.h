// States of prompts in a folder, for the cache (state_cache.h): what memory has no room for, and what outlives the
// process. Each is a file as `generate --save-state` makes them, with the tokens that were read and a checksum; a file
// that is damaged is removed, with a word. States of other models lie in folders of their own and are not touched.
//
// Files are written by a thread of its own; everything else is the engine's thread's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "model/language_model.h"

namespace qdelta::serve {

class StateStore {
 public:
  struct Entry {
    std::string name;
    std::vector<std::int32_t> tokens;
    std::size_t bytes = 0;
  };

  // Makes the folder where there is none.
  StateStore(const std::string& folder, const LanguageModel& model);
  // Writes what waits.
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // What is there, the longest unused first.
  [[nodiscard]] std::vector<Entry> entries() const;
  // Writes a state, on the CPU, that these tokens have left; the file's name, and about how large it becomes. Without
  // `patience` nothing is done, and there is no name, where several wait to be written already.
  [[nodiscard]] Entry add(std::span<const std::int32_t> tokens, std::unique_ptr<const ModelStates> state,
                          bool patience = false);
  // Reads a state into a slot; false where it is not what these tokens leave. Marks the file as used.
  [[nodiscard]] bool load(const std::string& name, std::span<const std::int32_t> tokens, ModelStates& states,
                          std::int64_t slot);
  void remove(const std::string& name);

 private:
  struct Task {
    std::string name;
    std::vector<std::int32_t> tokens;
    std::unique_ptr<const ModelStates> state;
  };
  void write();
  [[nodiscard]] std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  // Waits until a file is written, if it is to be.
  void settle(const std::string& name);

  const LanguageModel& model_;
  const std::uint64_t model_hash_;
  std::string folder_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> waiting_;
  std::string writing_;  // the name; empty: nothing
  bool ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace qdelta::serve
