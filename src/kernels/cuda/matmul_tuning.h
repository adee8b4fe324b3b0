// Which of several algorithms for the same matrix product is the fastest. An algorithm counts only if its result has
// the bits of the first one's, so that what is computed does not depend on what was timed.
#pragma once

#include <cstddef>
#include <functional>

namespace qdelta::cuda {

class Context;
struct MatmulShape;

// Smaller products are not worth it: some 20 us on a large GPU.
inline constexpr double kLeastTunedFlop = 1.6e10;

// `run` launches an algorithm with its result in `out`, memory of so many bytes, and says whether it could. Returns 0,
// the first, where there is no memory for another result.
[[nodiscard]] int fastest_with_same_bits(const Context& context, int algorithms, std::size_t bytes,
                                         const std::function<bool(int algorithm, void* out)>& run);

// The first of the algorithms but 0 whose result on random operands has the bits of that of 0; 0 where none has, or
// there is no memory to try.
struct Trial {
  void *a, *b, *add, *c;
};
[[nodiscard]] int first_with_same_bits(const Context& context, const MatmulShape& shape, int algorithms,
                                       const std::function<bool(int algorithm, const Trial& trial)>& run);

}  // namespace qdelta::cuda
