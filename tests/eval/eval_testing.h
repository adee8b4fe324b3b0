// What the tests of evaluation share: a small model that speaks bytes, records out of text, an encoder.
#pragma once

#include <string>
#include <vector>

#include "cli/cli_testing.h"
#include "data/byte_tokenizer.h"
#include "eval/data_file.h"
#include "eval/encoding.h"
#include "infer/generating_case.h"
#include "testing.h"

namespace qdelta::testing {

inline eval::Record record_of(const std::string& json, const std::string& label = "file.jsonl: line 1") {
  return {nlohmann::json::parse(json), label};
}

}  // namespace qdelta::testing
