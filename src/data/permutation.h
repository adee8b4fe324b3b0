// A shuffled order of [0, size) that takes no memory: each index is computed when it is asked for.
//
// A Feistel network permutes [0, 4^bits), the smallest such range that holds [0, size); what falls outside is permuted
// again until it falls inside (fewer than four steps on average).
#pragma once

#include <array>
#include <cstdint>

#include "core/random.h"

namespace qdelta {

class Permutation {
 public:
  // size > 0; the same seed gives the same order everywhere.
  Permutation(std::uint64_t size, std::uint64_t seed) : size_(size) {
    while (bits_ < 32 && (std::uint64_t{1} << (2 * bits_)) < size) ++bits_;
    Random random(seed);
    for (std::uint64_t& key : keys_) key = random.bits();
  }

  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const noexcept {
    do index = permuted(index);
    while (index >= size_);
    return index;
  }

 private:
  [[nodiscard]] std::uint64_t permuted(std::uint64_t index) const noexcept {
    const std::uint64_t mask = (std::uint64_t{1} << bits_) - 1;
    std::uint64_t left = index >> bits_;
    std::uint64_t right = index & mask;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t before = right;
      right = (left ^ Random(key ^ right).bits()) & mask;
      left = before;
    }
    return (left << bits_) | right;
  }

  std::uint64_t size_;
  unsigned bits_ = 1;  // of each half
  std::array<std::uint64_t, 6> keys_{};
};

}  // namespace qdelta
