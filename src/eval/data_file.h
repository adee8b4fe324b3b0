// Data sets as files: JSON lines, or one JSON array, plain or compressed.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "data/checked_json.h"

namespace qdelta::eval {

// One example as it stands in its file.
struct Record {
  nlohmann::json value;
  std::string label;  // "FILE: line 3"

  [[nodiscard]] JsonAt at() const { return {value, label}; }
};

// The whole file as text, uncompressed where need be.
[[nodiscard]] std::string read_whole(const std::string& path);
// The objects in a file: those of an array, the one that is the file, or one on each line. Throws with the file and the
// line; also where there are none.
[[nodiscard]] std::vector<Record> read_records(const std::string& path);

// The first of these files in a folder, their names without an ending tried with the usual ones (.jsonl, .json and so
// on, compressed too). Throws with the names where there is none.
[[nodiscard]] std::string find_data(const std::string& folder, const std::string& task,
                                    const std::vector<std::string>& stems);

// Members that differ between the layouts of a data set.
[[nodiscard]] std::string text_at(const JsonAt& record, const char* key);
// A whole number, also as text ("2"), from `low` to `high`.
[[nodiscard]] std::int64_t index_at(const JsonAt& record, const char* key, std::int64_t low, std::int64_t high);
// An array of texts.
[[nodiscard]] std::vector<std::string> texts_at(const JsonAt& record, const char* key);

}  // namespace qdelta::eval
