// A row is read once. The largest so far are kept in order; most logits are below the last of them, which is one
// comparison.
#include <algorithm>

#include "core/threads.h"
#include "kernels/cpu/layers.h"
#include "kernels/cpu/view_check.h"

namespace qdelta::cpu {

void top_logits(const Device& device, const TopLogits& args) {
  const std::int64_t width = args.logits.extent(1);
  const auto top = static_cast<std::size_t>(args.top);
  parallel_for(args.logits.extent(0), thread_count(device.threads), [&](std::int64_t row, int /*worker*/) {
    const float* z = floats(args.logits) + row * args.logits.step(0);
    const std::span<std::int32_t> tokens = args.tokens.subspan(static_cast<std::size_t>(row) * top, top);
    const std::span<float> values = args.values.subspan(static_cast<std::size_t>(row) * top, top);
    std::size_t kept = 0;
    for (std::int64_t v = 0; v < width; ++v) {
      if (kept == top && !(z[v] > values[top - 1])) continue;
      kept = std::min(kept + 1, top);
      std::size_t place = kept - 1;
      for (; place > 0 && z[v] > values[place - 1]; --place) {
        values[place] = values[place - 1];
        tokens[place] = tokens[place - 1];
      }
      values[place] = z[v];
      tokens[place] = static_cast<std::int32_t>(v);
    }
  });
}

}  // namespace qdelta::cpu
