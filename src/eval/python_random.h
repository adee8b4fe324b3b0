// Random numbers as Python draws them, so that what lm-evaluation-harness draws is drawn here too.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace qdelta::eval {

// The first state of a Mersenne Twister as Python makes it from a small number: the generator's seeding by an array
// (Matsumoto and Nishimura, 2002), the array being that one number.
class PythonSeed {
 public:
  using result_type = std::uint32_t;
  explicit PythonSeed(std::uint32_t seed) : seed_(seed) {}

  template <class Iterator>
  void generate(Iterator begin, Iterator end) const {
    constexpr std::size_t kWords = 624;
    std::array<std::uint32_t, kWords> state{};
    const auto shaken = [](std::uint32_t word) { return word ^ (word >> 30U); };
    state[0] = 19650218U;
    for (std::size_t i = 1; i < kWords; ++i) {
      state[i] = 1812433253U * shaken(state[i - 1]) + static_cast<std::uint32_t>(i);
    }
    std::size_t i = 1;
    const auto onward = [&] {
      if (++i < kWords) return;
      state[0] = state[kWords - 1];
      i = 1;
    };
    for (std::size_t n = 0; n < kWords; ++n, onward())
      state[i] = (state[i] ^ (shaken(state[i - 1]) * 1664525U)) + seed_;
    for (std::size_t n = 1; n < kWords; ++n, onward()) {
      state[i] = (state[i] ^ (shaken(state[i - 1]) * 1566083941U)) - static_cast<std::uint32_t>(i);
    }
    state[0] = 0x80000000U;
    std::copy_n(state.begin(), std::min(kWords, static_cast<std::size_t>(end - begin)), begin);
  }

 private:
  std::uint32_t seed_;
};

// random.Random(seed)
class PythonRandom {
 public:
  explicit PythonRandom(std::uint32_t seed);

  // random.sample(range(size), count). count <= size < 2^32.
  [[nodiscard]] std::vector<std::size_t> sample(std::size_t size, std::size_t count);

 private:
  [[nodiscard]] std::size_t below(std::size_t bound);  // _randbelow_with_getrandbits

  std::mt19937 generator_;
};

}  // namespace qdelta::eval
