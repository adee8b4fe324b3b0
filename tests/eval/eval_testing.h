// What the tests of evaluation share: a small model that speaks bytes, records out of text, an encoder.
#pragma once

#include <string>
#include <vector>

#include "cli/cli_testing.h"
#include "data/byte_tokenizer.h"
#include "eval/data_file.h"
#include "eval/encoding.h"
#include "infer/generating_case.h"

namespace qdelta::testing {

inline eval::Record record_of(const std::string& json, const std::string& label = "file.jsonl: line 1") {
  return {nlohmann::json::parse(json), label};
}

// The message of the Error that an action throws; "" where it throws none.
template <class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace qdelta::testing
