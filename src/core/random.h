// Random numbers that are the same on every machine: SplitMix64, and the usual transforms on top.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace qdelta {

class Random {
 public:
  // As if `drawn` numbers (of bits() or uniform()) had been drawn already.
  explicit Random(std::uint64_t seed, std::uint64_t drawn = 0) : state_(seed + drawn * kStep) {}

  std::uint64_t bits() {
    state_ += kStep;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }
  // In [0, 1), with 53 random bits.
  double uniform() { return static_cast<double>(bits() >> 11U) * 0x1.0p-53; }
  // Whole number in [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  // Standard normal (Box-Muller).
  float normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * uniform()));
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15U;

  std::uint64_t state_;
};

// One seed out of several numbers: different ones give unrelated seeds. Sums and products of seeds would not do: the
// numbers of one would be those of another, a few places further on.
[[nodiscard]] inline std::uint64_t mixed_seed(std::uint64_t a, std::uint64_t b, std::uint64_t c = 0) noexcept {
  return Random(Random(Random(a).bits() ^ b).bits() ^ c).bits();
}

}  // namespace qdelta
