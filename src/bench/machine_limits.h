// What this machine can do at most, measured: the yardstick that benchmarks are read against. Machines are noisy and
// clocks drift, so a limit is only good for comparison with something timed in the same run.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/device.h"

namespace qdelta::bench {

// Seconds per call: the median over repeated calls, at least `min_calls` and until `min_seconds` have gone by.
[[nodiscard]] double median_seconds(const std::function<void()>& call, int min_calls = 5, double min_seconds = 0.3);

// FLOP/s of oneDNN's float32 matrix product: the best over sizes from 256 to 2048, each a median.
[[nodiscard]] double matrix_rate(int threads);
// The same of a device: on a GPU cuBLASLt's product of 8192 x 8192 matrices in the type of its activations.
[[nodiscard]] double matrix_rate(const Device& device);

// Bytes/s of updating `bytes` of memory in place (each byte is read once and written once, both count), every thread
// keeping to its own part, as a recurrent step does with its states.
[[nodiscard]] double update_bandwidth(std::size_t bytes, int threads);

// Bytes/s of reading `bytes` of memory once from end to end, every thread its own part, as decoding does with weights.
[[nodiscard]] double read_bandwidth(std::size_t bytes, int threads);
// The same of a device: on a GPU copying, where each byte is read once and written once and both count.
[[nodiscard]] double read_bandwidth(const Device& device, std::size_t bytes);

}  // namespace qdelta::bench
