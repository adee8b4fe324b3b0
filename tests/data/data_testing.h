// What the tests of src/data share: fixtures, and a small dataset.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <zlib.h>

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

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  std::string in = text;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

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
