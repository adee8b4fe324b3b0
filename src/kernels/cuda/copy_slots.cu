// rows[n] = pool[slots[n]];   pool[slots[n]] = rows[n]: all states in one launch, however far apart they lie.
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"

namespace qdelta::cuda {
namespace {

constexpr int kPerThread = 8;  // packs

// A row for each block in y, N elements at a time.
template <int N, bool kGather>
__global__ __launch_bounds__(kBlockThreads) void copy_slots_kernel(float* pool, std::int64_t pool_rows, float* rows,
                                                                   const std::int64_t* slots, std::int64_t width) {
  using Values = Pack<float, N>;
  const std::int64_t slot = slots[blockIdx.y];
  if (slot < 0 || slot >= pool_rows) return;
  auto* in_pool = reinterpret_cast<Values*>(pool + slot * width);
  auto* in_rows = reinterpret_cast<Values*>(rows + blockIdx.y * width);
  const std::int64_t first = std::int64_t{blockIdx.x} * kBlockThreads * kPerThread + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const std::int64_t at = first + i * kBlockThreads;
    if (at >= width / N) continue;
    if constexpr (kGather) {
      in_rows[at] = in_pool[at];
    } else {
      in_pool[at] = in_rows[at];
    }
  }
}

template <bool kGather>
void copy_slots(const Context& context, const CopySlots& args) {
  const std::int64_t width = args.pool.extent(1);
  const std::int64_t rows = args.rows.extent(0);
  if (args.rows.shape.elements() == 0) return;
  require(rows < 65536, "{} states are too many for one launch", rows);
  const auto run = [&](auto pack) {
    constexpr int N = decltype(pack)::value;
    const dim3 grid(blocks_for(width / N, kBlockThreads * kPerThread), static_cast<unsigned>(rows));
    copy_slots_kernel<N, kGather><<<grid, kBlockThreads, 0, context.stream()>>>(
        floats(args.pool), args.pool.extent(0), floats(args.rows), args.slots.data(), width);
    check_launch("copy_slots");
  };
  if (aligned(4, {args.pool, args.rows}) && width % 4 == 0) {
    run(std::integral_constant<int, 4>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

}  // namespace

void gather_slots(const Context& context, const CopySlots& args) { copy_slots<true>(context, args); }
void scatter_slots(const Context& context, const CopySlots& args) { copy_slots<false>(context, args); }

}  // namespace qdelta::cuda
