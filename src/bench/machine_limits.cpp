#include "bench/machine_limits.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "core/error.h"
#include "core/memory.h"
#include "core/random.h"
#include "core/threads.h"
#include "kernels/layers.h"

namespace qdelta::bench {

Limit matrix_rate(int threads) {
  constexpr int kCalls = 3;
  constexpr double kSeconds = 0.1;  // of each size, and four sizes
  Limit best;
  const int before = omp_get_max_threads();
  omp_set_num_threads(thread_count(threads));
  for (const std::int64_t size : {256, 512, 1024, 2048}) {
    const auto count = static_cast<std::size_t>(size * size);
    std::vector<float> a(count);
    std::vector<float> b(count);
    std::vector<float> c(count);
    Random random(static_cast<std::uint64_t>(size));
    for (float& value : a) value = random.normal();
    for (float& value : b) value = random.normal();
    const Timing timing = measure(
        [&] {
          const dnnl_status_t status =
              dnnl_sgemm('N', 'N', size, size, size, 1.0F, a.data(), size, b.data(), size, 0.0F, c.data(), size);
          if (status != dnnl_success)
            fail(Status::internal, "oneDNN's matrix product failed with status {}", static_cast<int>(status));
        },
        kCalls, kSeconds);
    best = larger(best, limit_of(2.0 * static_cast<double>(size * size * size), timing));
  }
  omp_set_num_threads(before);
  return best;
}

namespace {

// Waits for everything that was asked of the device.
void finish(const Device& device, const DeviceBuffer& any) {
  std::byte byte{};
  download(device, &byte, any.data(), 1);
}

}  // namespace

Limit matrix_rate(const Device& device) {
  if (device.gpu == nullptr) return matrix_rate(device.threads);
  constexpr std::int64_t kSize = 8192;
  constexpr int kProducts = 10;  // between two waits
  Tensor random_values(DType::f32, {kSize, kSize});
  Random random(3);
  for (float& value : random_values.as<float>()) value = random.normal();
  const Tensor host = converted(random_values.view(), device.activations);
  DeviceBuffer a(device, host.bytes());
  DeviceBuffer b(device, host.bytes());
  DeviceBuffer c(device, host.bytes());
  upload(device, a.data(), host.data(), host.bytes());
  upload(device, b.data(), host.data(), host.bytes());
  const auto matrix = [&](DeviceBuffer& buffer) {
    return TensorView(buffer.data(), device.activations, {kSize, kSize});
  };
  const Timing timing = measure([&] {
    for (int i = 0; i < kProducts; ++i) linear_forward(device, {matrix(a), matrix(b), matrix(c), {}});
    finish(device, c);
  });
  return limit_of(kProducts * 2.0 * static_cast<double>(kSize * kSize * kSize), timing);
}

namespace {

Limit update_on_cpu(std::size_t bytes, int threads) {
  const int team = thread_count(threads);
  const auto count = static_cast<std::int64_t>(bytes / sizeof(float));
  AlignedBuffer buffer(bytes);
  auto* data = reinterpret_cast<float*>(buffer.data());
  const std::int64_t part = round_up(ceil_div(count, team), 16);
  const Timing timing = measure([&] {
    parallel_for_static(team, team, [&](std::int64_t index, int /*worker*/) {
      const std::int64_t end = std::min(count, (index + 1) * part);
      for (std::int64_t i = index * part; i < end; ++i) data[i] = data[i] * 0.999F + 0.001F;
    });
  });
  return limit_of(2.0 * static_cast<double>(bytes), timing);
}

Limit read_on_cpu(std::size_t bytes, int threads) {
  const int team = thread_count(threads);
  const auto count = static_cast<std::int64_t>(bytes / sizeof(std::uint64_t));
  AlignedBuffer buffer(bytes);
  // Whole numbers: their sums may be taken in any order, so the compiler uses vectors. Not zeros: a system may keep
  // pages of zeros as one page, which would then be read from the cache.
  auto* words = reinterpret_cast<std::uint64_t*>(buffer.data());
  Random random(1);
  for (std::int64_t i = 0; i < count; ++i) words[i] = random.bits();
  const std::int64_t part = round_up(ceil_div(count, team), 8);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(team));
  const Timing timing = measure([&] {
    parallel_for_static(team, team, [&](std::int64_t index, int /*worker*/) {
      const std::int64_t end = std::min(count, (index + 1) * part);
      std::uint64_t sum = 0;
      for (std::int64_t i = index * part; i < end; ++i) sum += words[i];
      sums[static_cast<std::size_t>(index)] = sum;
    });
  });
  // The sums are used, or there would be nothing to read.
  const std::uint64_t total = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
  if (total == 1) fail(Status::internal, "the sum of random numbers is 1");
  return limit_of(static_cast<double>(bytes), timing);
}

Limit copy_on_gpu(const Device& device, std::size_t bytes) {
  constexpr int kCopies = 10;
  DeviceBuffer from(device, bytes);
  DeviceBuffer to(device, bytes);
  const Timing timing = measure([&] {
    for (int i = 0; i < kCopies; ++i) copy_on_device(device, to.data(), from.data(), bytes);
    finish(device, to);
  });
  return limit_of(kCopies * 2.0 * static_cast<double>(bytes), timing);
}

}  // namespace

Limit update_bandwidth(const Device& device, std::size_t bytes) {
  return device.gpu == nullptr ? update_on_cpu(bytes, device.threads) : copy_on_gpu(device, bytes);
}

Limit read_bandwidth(const Device& device, std::size_t bytes) {
  return device.gpu == nullptr ? read_on_cpu(bytes, device.threads) : copy_on_gpu(device, bytes);
}

}  // namespace qdelta::bench
