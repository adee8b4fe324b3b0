// What the tests of src/data share: fixtures, and a small dataset.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "data/shards.h"
#include "files.h"
#include "testing.h"

namespace qdelta::testing {

// Beside this file, wherever the tests are run.
inline std::string fixture(std::string_view name) { return fmt::format("{}/data/fixtures/{}", QDELTA_TESTS_DIR, name); }

// Documents of these lengths, with ids that count up from 0 (modulo the vocabulary), so that a token tells its place.
inline void write_counting(const std::string& folder, const std::vector<std::int64_t>& lengths, std::int32_t vocab_size,
                           std::int64_t shard_tokens) {
  ShardWriter writer({folder, "counting", vocab_size, 42, shard_tokens, false});
  std::int64_t next = 0;
  for (const std::int64_t length : lengths) {
    std::vector<std::int32_t> document;
    for (std::int64_t i = 0; i < length; ++i) document.push_back(static_cast<std::int32_t>(next++ % vocab_size));
    writer.add(document);
  }
  writer.finish();
}

}  // namespace qdelta::testing
