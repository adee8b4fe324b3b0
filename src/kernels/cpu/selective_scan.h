// The selective scan on the CPU, in float32; arguments have been checked.
#pragma once

#include "kernels/selective_scan.h"

namespace qdelta::cpu {

void selective_scan_forward(const Device& device, const SelectiveScanForward& args);
void selective_scan_backward(const Device& device, const SelectiveScanBackward& args, std::span<std::byte> workspace);
void selective_scan_step(const Device& device, const SelectiveScanStep& args);
[[nodiscard]] std::size_t selective_scan_backward_workspace(const Device& device, const SelectiveScanInputs& in);

}  // namespace qdelta::cpu
