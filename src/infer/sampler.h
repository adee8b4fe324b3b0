// The sampling states of the sequences in a pool's slots, where the device's sampler (kernels/sampling.h) reaches them.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/device.h"
#include "kernels/sampling.h"
#include "kernels/workspace.h"

namespace qdelta {

struct TokenBias {
  std::int32_t token = 0;
  float bias = 0;
};

class Sampler {
 public:
  Sampler(const Device& device, std::int64_t slots, std::int64_t vocabulary);

  // A sequence takes the slot. The repetition penalty applies to the tokens that it has seen; those at or beyond the
  // vocabulary are passed over. `bias` is added to logits.
  void start(std::int64_t slot, SamplingState state, std::span<const std::int32_t> seen,
             std::span<const TokenBias> bias = {});
  // The next token of each row of logits [R, vocabulary], with the state of slots[r]; -1 where there is a NaN. A row
  // with a negative slot is skipped. Logits, slots and tokens are in device memory.
  void sample(const TensorView& logits, std::span<const std::int64_t> slots, std::span<std::int32_t> tokens);

 private:
  Device device_;
  std::int64_t slots_, vocabulary_;
  DeviceBuffer states_, seen_, drawn_, bias_;
  Workspace workspace_;
};

}  // namespace qdelta
