// Runs a model over tokens and keeps what the recurrences of some layers were given.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "analyze/trace.h"
#include "model/language_model.h"

namespace qdelta::analyze {

using Sequences = std::vector<std::vector<std::int32_t>>;

// Traces of `layers` (numbered from 0, rising), each sequence from an empty state. Throws where a layer has no
// recurrence, or another rule than the first. `progress` hears of the tokens done. Where `stop` is raised on the way
// there is nothing to be had: the result is empty.
[[nodiscard]] std::vector<LayerTrace> probe(const LanguageModel& model, const Device& device,
                                            const Sequences& sequences, const std::vector<std::int64_t>& layers,
                                            const std::atomic<bool>& stop,
                                            const std::function<void(std::int64_t tokens)>& progress);

}  // namespace qdelta::analyze
