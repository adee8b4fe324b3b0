// The sampler of kernels/sampling.h on the CPU.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/sampling.h"

namespace qdelta::cpu {

// As kernels/cpu/layers.h has it: the workspace has sample_workspace() bytes.
void sample(const Device& device, const Sample& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t sample_workspace(const Device& device, const Sample& args);

}  // namespace qdelta::cpu
