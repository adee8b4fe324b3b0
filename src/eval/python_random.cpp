#include "eval/python_random.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "core/error.h"

namespace qdelta::eval {

PythonRandom::PythonRandom(std::uint32_t seed) {
  PythonSeed numbers(seed);
  generator_.seed(numbers);
}

std::size_t PythonRandom::below(std::size_t bound) {
  const auto bits = static_cast<unsigned>(std::bit_width(bound));
  std::size_t value = 0;
  do value = static_cast<std::uint32_t>(generator_()) >> (32U - bits);
  while (value >= bound);
  return value;
}

std::vector<std::size_t> PythonRandom::sample(std::size_t size, std::size_t count) {
  require(count <= size && size < (std::size_t{1} << 32U), "a sample of {} out of {}", count, size);
  double set_size = 21;  // of a small set, against a list of the whole
  if (count > 5) set_size += std::pow(4, std::ceil(std::log(static_cast<double>(count) * 3) / std::log(4)));
  std::vector<std::size_t> result;
  if (static_cast<double>(size) <= set_size) {
    std::vector<std::size_t> pool(size);
    std::iota(pool.begin(), pool.end(), std::size_t{0});
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = below(size - i);
      result.push_back(pool[at]);
      pool[at] = pool[size - i - 1];
    }
    return result;
  }
  std::unordered_set<std::size_t> chosen;
  while (result.size() < count) {
    const std::size_t at = below(size);
    if (chosen.insert(at).second) result.push_back(at);
  }
  return result;
}

}  // namespace qdelta::eval
