// The tasks there are, by name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/encoding.h"
#include "eval/task.h"
#include "model/config.h"

namespace qdelta::eval {

struct TaskSettings {
  std::string data;                                     // the folder with the data sets
  std::string ruler_data;                               // with RULER's words and essays; "": our own
  std::int64_t fewshot = 0;                             // solved examples before each question of a choice
  std::int64_t limit = 0;                               // only the first so many examples; 0: all
  std::vector<std::int64_t> lengths{1024, 2048, 4096};  // of needle tasks
  std::int64_t samples = 500;                           // of each needle task
  std::uint64_t seed = 42;                              // of what is generated
  std::string haystack = "longest";                     // of needle tasks, or "harness" (needle.h)
  std::int64_t recall_length = 2048;                    // that a cloze's document is cut to
  std::string mqar = "paper";                           // LENGTH:PAIRS:EXAMPLES, or the published mixture
  std::int64_t rewrites = 0;                            // of each of its examples
};

// What tasks are made of. `encoder` may be null where no task needs a tokenizer.
struct TaskSource {
  const TaskSettings& settings;
  const RequestEncoder* encoder;
  const ModelConfig& model;
};

// The first so many; 0: all.
template <class T>
void limit_to(std::vector<T>& values, std::int64_t limit) {
  if (limit > 0 && static_cast<std::int64_t>(values.size()) > limit) {
    values.erase(values.begin() + static_cast<std::ptrdiff_t>(limit), values.end());
  }
}

using TaskList = std::vector<std::unique_ptr<Task>>;

struct TaskEntry {
  const char* name;
  const char* about;  // one line
  bool reads_text;    // needs a tokenizer
  bool fewshot;       // can have solved examples before its questions
  // May add several: one for each length.
  void (*make)(const TaskEntry& entry, const TaskSource& source, TaskList& out);
};

[[nodiscard]] std::span<const TaskEntry> all_tasks();
// The entries that a comma-separated list names, each once. Throws with the names there are.
[[nodiscard]] std::vector<const TaskEntry*> tasks_named(const std::string& list);
[[nodiscard]] TaskList make_tasks(std::span<const TaskEntry* const> entries, const TaskSource& source);

}  // namespace qdelta::eval
