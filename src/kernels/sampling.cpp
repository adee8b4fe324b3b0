#include "kernels/sampling.h"

#include <cmath>

#include "core/error.h"

namespace qdelta {

void SamplingOptions::check() const {
  require(std::isfinite(temperature) && temperature >= 0, "temperature is {}, expected 0 or more", temperature);
  require(top_k >= 0, "top-k is {}, expected 0 (all) or more", top_k);
  require(top_p > 0 && top_p <= 1, "top-p is {}, expected more than 0 and at most 1", top_p);
  require(min_p >= 0 && min_p < 1, "min-p is {}, expected at least 0 and less than 1", min_p);
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition penalty is {}, expected more than 0",
          repetition_penalty);
}

}  // namespace qdelta
