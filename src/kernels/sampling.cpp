#include "kernels/sampling.h"

#include <cmath>

#include "core/error.h"
#include "kernels/cpu/sample.h"
#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/layers.h"
#endif

namespace qdelta {

void SamplingOptions::check() const {
  require(std::isfinite(temperature) && temperature >= 0, "temperature is {}, expected 0 or more", temperature);
  require(top_k >= 0, "top-k is {}, expected 0 (all) or more", top_k);
  require(top_p > 0 && top_p <= 1, "top-p is {}, expected more than 0 and at most 1", top_p);
  require(min_p >= 0 && min_p < 1, "min-p is {}, expected at least 0 and less than 1", min_p);
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition penalty is {}, expected more than 0",
          repetition_penalty);
  require(std::isfinite(presence_penalty), "presence penalty is {}, expected a number", presence_penalty);
  require(std::isfinite(frequency_penalty), "frequency penalty is {}, expected a number", frequency_penalty);
}

namespace {

// What can be checked without reading the spans.
void check_sizes(const Sample& args) {
  require(static_cast<bool>(args.logits) && args.logits.shape.rank == 2, "sample: logits must be a matrix");
  const std::int64_t rows = args.logits.extent(0);
  const std::int64_t width = args.logits.extent(1);
  const auto states = static_cast<std::int64_t>(args.states.size());
  require(width > 0 && width < (std::int64_t{1} << 30), "sample: {} logits in a row", width);
  require(static_cast<std::int64_t>(args.tokens.size()) == rows, "sample: {} tokens for {} rows", args.tokens.size(),
          rows);
  require(static_cast<std::int64_t>(args.slots.size()) == rows || (args.slots.empty() && states >= rows),
          "sample: {} slots of {} states for {} rows", args.slots.size(), states, rows);
  require(static_cast<std::int64_t>(args.seen.size()) == states * seen_words(width),
          "sample: seen has {} words for {} states of {} tokens", args.seen.size(), states, width);
  require(args.bias.empty() ||
              (static_cast<std::int64_t>(args.bias.size()) == states * width && args.drawn.size() == args.seen.size()),
          "sample: bias has {} values for {} states of {} tokens", args.bias.size(), states, width);
}

}  // namespace

void sample(const Device& device, const Sample& args, Workspace& workspace) {
  check_sizes(args);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::sample(*device.gpu, args);
#endif
  cpu::sample(device, args, workspace.get(cpu::sample_workspace(device, args)));
}

}  // namespace qdelta
