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

// Whether two ways to compute a product give the same bits on random operands; false where there is no memory to try.
struct Trial {
  void *a, *b, *add, *c;
};
using TrialRun = std::function<void(const Trial& trial)>;
[[nodiscard]] bool has_same_bits(const Context& context, const MatmulShape& shape, const TrialRun& one,
                                 const TrialRun& other);

}  // namespace qdelta::cuda
