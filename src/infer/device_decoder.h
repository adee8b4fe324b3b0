// Decoding that stays on a GPU: the model's step and the choice of tokens are one graph, one launch per token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/sampler.h"
#include "kernels/device.h"
#include "model/language_model.h"

namespace qdelta {

class DeviceDecoder {
 public:
  // Row r continues from state slots[r] with the token first[r]; seen[r] are the tokens the repetition penalty applies
  // to so far, streams[r] is the number of its random numbers: that of the sequence, whichever others go on.
  DeviceDecoder(ModelRunner& runner, const Device& device, ModelStates& states, std::span<const std::int64_t> slots,
                std::span<const std::int32_t> first, std::span<const std::uint64_t> streams,
                const SamplingOptions& sampling, const std::vector<std::vector<std::int32_t>>& seen);

  // Reads the last token of every row and gives the next.
  std::span<const std::int32_t> next();
  // Row r has ended: its state stays as it is, and what next() gives for it means nothing.
  void end(std::size_t row);

 private:
  ModelRunner& runner_;
  Device device_;
  ModelStates& states_;
  std::vector<std::int64_t> slots_;
  std::vector<std::int32_t> tokens_;
  DeviceBuffer device_tokens_, streams_, draws_, seen_;
  CapturedGraph step_;
};

}  // namespace qdelta
