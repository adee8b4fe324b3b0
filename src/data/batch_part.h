// A batch cut into parts, for processes that share its sequences.
#pragma once

#include "data/batches.h"

namespace qdelta {

// One of `count` parts of a batch: the tokens of all its sequences, one after the other, cut into stretches of equal
// length (to a token). A cut may go through a sequence, and then both parts have some of it.
struct BatchPart {
  TokenBatch batch;
  bool enters = false;  // its first sequence goes on with the last one of the part before
  bool leaves = false;  // its last sequence goes on in the part after
};

// Throws where there are fewer tokens than parts.
[[nodiscard]] BatchPart part_of(const TokenBatch& whole, std::int64_t index, std::int64_t count);

}  // namespace qdelta
