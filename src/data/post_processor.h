// The post-processors of tokenizer.json, as far as they concern one text: the ids they put before and after it.
#pragma once

#include <cstdint>
#include <vector>

#include "data/checked_json.h"

namespace qdelta {

struct Affixes {
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
};

// Ids must be below vocab_size. Throws Error(unsupported) or Error(corrupt).
[[nodiscard]] Affixes read_post_processor(const JsonAt& json, std::int32_t vocab_size);

}  // namespace qdelta
