#include <algorithm>

#include "kernels/cuda/upload_offsets.h"

namespace qdelta::cuda {
namespace {

constexpr int kPerLaunch = 448;  // 3.5 of the 4 KB that a kernel's arguments may have

struct Offsets {
  std::int64_t values[kPerLaunch];
  int count;
};

__global__ void store_offsets_kernel(Offsets from, std::int64_t* to) {
  if (threadIdx.x < from.count) to[threadIdx.x] = from.values[threadIdx.x];
}

}  // namespace

void upload_offsets(const Context& context, std::int64_t* to, std::span<const std::int64_t> host) {
  for (std::size_t begin = 0; begin < host.size(); begin += kPerLaunch) {
    Offsets piece{};
    piece.count = static_cast<int>(std::min<std::size_t>(kPerLaunch, host.size() - begin));
    std::copy_n(host.begin() + static_cast<std::ptrdiff_t>(begin), piece.count, piece.values);
    store_offsets_kernel<<<1, kPerLaunch, 0, context.stream()>>>(piece, to + begin);
    check_launch("store_offsets");
  }
}

}  // namespace qdelta::cuda
