// The selective scan on a GPU; arguments have been checked. Offsets and indices are in device memory.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/selective_scan.h"

namespace qdelta::cuda {

void selective_scan_forward(const Context& context, const SelectiveScanForward& args, std::span<std::byte> workspace);
void selective_scan_backward(const Context& context, const SelectiveScanBackward& args, std::span<std::byte> workspace);
void selective_scan_step(const Context& context, const SelectiveScanStep& args);
[[nodiscard]] std::size_t selective_scan_workspace(const SelectiveScanInputs& in, bool backward);

}  // namespace qdelta::cuda
