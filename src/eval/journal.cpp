#include "eval/journal.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/error.h"
#include "data/checked_json.h"
#include "eval/data_file.h"
#include "io/folder_lock.h"
#include "io/regular_file.h"
#include "io/run_log.h"

namespace qdelta::eval {

Journal::Journal(const std::string& path, const std::string& key, bool restart) : path_(path) {
  file_ = open_regular_file_to_append(path);
  lock_file(file_, path);
  std::string text = restart ? "" : read_whole(path);
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0
  if (!text.empty()) read(text, key);
  if (::ftruncate(file_.get(), static_cast<off_t>(text.size())) != 0) {
    fail(Status::io, "cannot shorten {}: {}", path, reason_of(errno));
  }
  if (text.empty()) write({{"journal", "qdelta eval"}, {"key", key}});
}

void Journal::read(std::string& text, const std::string& key) {
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string label = fmt::format("{}: line {}", path_, ++number);
    nlohmann::json line;
    try {
      line = parse_json(std::string_view(text).substr(begin, end - begin), label);
    } catch (const Error&) {
      if (end + 1 < text.size()) throw;
      text.resize(begin);  // the last one is damaged: what it had is computed again
      return;
    }
    const JsonAt at(line, label);
    begin = end + 1;
    if (number == 1) {
      if (!at.has("journal") || at.at("key").text() != key) {
        fail(Status::invalid_argument,
             "{} keeps the results of an evaluation with another model, other settings or other data. Give the same "
             "ones to go on with it, another --out, or --restart to throw them away",
             path_);
      }
      continue;
    }
    const std::string task = at.at("task").text();
    results_[{task, at.at("index").integer(0, INT64_MAX)}] = at.at("result").value();
  }
}

const nlohmann::json* Journal::find(const std::string& task, std::int64_t index) const {
  const auto found = results_.find({task, index});
  return found == results_.end() ? nullptr : &found->second;
}

void Journal::add(const std::string& task, std::int64_t index, const nlohmann::json& result) {
  if (!file_) return;
  write({{"task", task}, {"index", index}, {"result", result}});
  results_[{task, index}] = result;
}

void Journal::write(const nlohmann::json& line) { append_whole(file_, line.dump() + "\n", path_); }

void Journal::remove() {
  if (!file_) return;
  file_.close();
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace qdelta::eval
