// What this machine can do at most, measured: the yardstick that benchmarks are read against. Machines are noisy and
// clocks drift, so a limit is only good for comparison with something timed in the same run.
#pragma once

#include <cstddef>

#include "bench/timing.h"
#include "kernels/device.h"

namespace qdelta::bench {

// FLOP/s of oneDNN's float32 matrix product: the best of sizes from 256 to 2048.
[[nodiscard]] Limit matrix_rate(int threads);
// The same of a device: on a GPU cuBLASLt's product of 8192 x 8192 matrices in the type of its activations.
[[nodiscard]] Limit matrix_rate(const Device& device);

// Bytes/s of updating `bytes` of memory in place (each byte is read once and written once, both count), every thread
// keeping to its own part, as a recurrent step does with its states. On a GPU copying, and both count too.
[[nodiscard]] Limit update_bandwidth(const Device& device, std::size_t bytes);

// Bytes/s of reading `bytes` of memory once from end to end, every thread its own part, as decoding does with weights.
// On a GPU copying, where each byte is read once and written once and both count.
[[nodiscard]] Limit read_bandwidth(const Device& device, std::size_t bytes);

}  // namespace qdelta::bench
