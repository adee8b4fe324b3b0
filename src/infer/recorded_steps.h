// One token more of sequences that come and go: what a server does. The logits come to the host. On a GPU a step is a
// graph, one launch, for every number of sequences that has been seen before.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "model/language_model.h"

namespace qdelta {

class RecordedSteps {
 public:
  // For at most `most` sequences at a time, whose states are in `states`.
  RecordedSteps(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, const Device& device,
                ModelStates& states, std::int64_t most);

  // The sequences in these slots read these tokens; logits[R, vocabulary] are what they expect next.
  void next(std::span<const std::int32_t> tokens, std::span<const std::int64_t> slots, std::span<float> logits);

 private:
  ModelRunner runner_;  // of its own: graphs point into its memory, which other calls would lay out anew
  Device device_;
  ModelStates& states_;
  DeviceBuffer tokens_;
  std::vector<std::int64_t> slots_;
  struct Step {
    CapturedGraph recording;
    ConstTensorView logits;  // on the device
  };
  std::map<std::size_t, Step> steps_;  // by the number of sequences
};

}  // namespace qdelta
