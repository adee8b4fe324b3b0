// The parts are arguments of the kernel, which has a row of blocks for each.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/copy_many.h"
#include "kernels/cuda/kernel_launch.h"

namespace qdelta::cuda {
namespace {

constexpr int kPerLaunch = 128;           // 3 of the 4 KB that a kernel's arguments may have
constexpr std::size_t kPerBlock = 65536;  // bytes

struct Parts {
  CopyPart parts[kPerLaunch];
};

template <class T>
__global__ __launch_bounds__(kBlockThreads) void copy_many_kernel(const Parts all) {
  const CopyPart part = all.parts[blockIdx.y];
  const auto* from = reinterpret_cast<const T*>(part.from);
  auto* to = reinterpret_cast<T*>(part.to);
  const std::size_t count = part.bytes / sizeof(T);
  const std::size_t stride = std::size_t{gridDim.x} * kBlockThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < count; i += stride) to[i] = from[i];
}

bool in_vectors(const CopyPart& part) {
  const auto bits =
      reinterpret_cast<std::uintptr_t>(part.to) | reinterpret_cast<std::uintptr_t>(part.from) | part.bytes;
  return bits % sizeof(float4) == 0;
}

}  // namespace

void copy_many(const Context& context, std::span<const CopyPart> parts) {
  for (; !parts.empty(); parts = parts.subspan(std::min<std::size_t>(kPerLaunch, parts.size()))) {
    const auto now = parts.first(std::min<std::size_t>(kPerLaunch, parts.size()));
    Parts all{};
    std::copy(now.begin(), now.end(), all.parts);
    std::size_t longest = 0;
    for (const CopyPart& part : now) longest = std::max(longest, part.bytes);
    if (longest == 0) continue;
    const dim3 grid(static_cast<unsigned>((longest + kPerBlock - 1) / kPerBlock), static_cast<unsigned>(now.size()));
    const auto kernel =
        std::all_of(now.begin(), now.end(), in_vectors) ? copy_many_kernel<float4> : copy_many_kernel<std::uint8_t>;
    kernel<<<grid, kBlockThreads, 0, context.stream()>>>(all);
    check_launch("copy_many");
  }
}

}  // namespace qdelta::cuda
