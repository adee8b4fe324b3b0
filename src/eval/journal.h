// The results of examples as they come, in a file, so that an evaluation that was stopped goes on where it was.
//
// The file is JSON lines: first what it belongs to, then {"task", "index", "result"} for each finished example. It is
// only ever added to; a last line that a crash cut short is dropped.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "io/file_descriptor.h"

namespace qdelta::eval {

class Journal {
 public:
  // Keeps nothing.
  Journal() = default;
  // Opens the file or makes it. Refuses one that belongs to something else than `key`, unless it may be thrown away.
  Journal(const std::string& path, const std::string& key, bool restart);

  // Null where the example is not finished.
  [[nodiscard]] const nlohmann::json* find(const std::string& task, std::int64_t index) const;
  void add(const std::string& task, std::int64_t index, const nlohmann::json& result);
  [[nodiscard]] std::size_t size() const { return results_.size(); }
  // When everything is done and written elsewhere.
  void remove();

 private:
  void read(std::string& text, const std::string& key);
  void write(const nlohmann::json& line);

  std::string path_;
  FileDescriptor file_;
  std::map<std::pair<std::string, std::int64_t>, nlohmann::json> results_;
};

}  // namespace qdelta::eval
