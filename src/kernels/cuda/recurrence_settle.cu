// S <- w S + sum over the recent tokens j of w_j k_j r_j^T, and then there are none (kernels/recurrence.h).
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/recent_tokens.cuh"
#include "kernels/recurrence_check.h"

namespace qdelta::cuda {
namespace {

constexpr int kColumns = 32;  // of a block, one for each lane
constexpr int kRows = kBlockThreads / kColumns;

struct SettleArgs {
  float* states;
  std::int64_t state_stride, head_stride, row_stride;
  float* recent;
  std::int64_t recent_stride, recent_head_stride;
  int K, V;
};

__global__ __launch_bounds__(kBlockThreads) void settle_kernel(const __grid_constant__ SettleArgs a) {
  const auto first_column = static_cast<int>(blockIdx.x) * kColumns;
  const int column = first_column + static_cast<int>(threadIdx.x) % kColumns;
  const auto head = static_cast<std::int64_t>(blockIdx.y);
  const auto row = static_cast<std::int64_t>(blockIdx.z);
  RecentOfHead recent(a.recent + row * a.recent_stride + head * a.recent_head_stride, a.K, a.V);
  const auto count = static_cast<int>(recent.counts[first_column]);
  const RecentDecays decays(recent, count);
  const float state_weight = decays.of_state();
  float residuals[kRecentTokens];
#pragma unroll
  for (int j = 0; j < kRecentTokens; ++j) {
    const float weight = decays.behind(j);
    residuals[j] = j < count && column < a.V ? weight * recent.residual(j)[column] : 0.0F;
  }
  if (count == 0) return;
  float* state = a.states + row * a.state_stride + head * a.head_stride + column;
  for (int k = static_cast<int>(threadIdx.x) / kColumns; k < a.K && column < a.V; k += kRows) {
    float sum = state_weight * state[k * a.row_stride];
#pragma unroll
    for (int j = 0; j < kRecentTokens; ++j) {
      if (j < count) sum = fmaf(recent.key(j)[k], residuals[j], sum);
    }
    state[k * a.row_stride] = sum;
  }
  __syncthreads();  // all have read the number
  if (static_cast<int>(threadIdx.x) < kColumns && column < a.V) recent.counts[column] = 0;
}

}  // namespace

void recurrence_settle(const Context& context, const RecurrenceSettle& args) {
  check(args);
  const TensorView& states = args.states;
  const std::int64_t R = states.extent(0);
  const std::int64_t HV = states.extent(1);
  const std::int64_t V = states.extent(3);
  if (R * HV * V == 0) return;
  require(R < 65536 && HV < 65536, "{} states of {} heads are too many for one launch", R, HV);
  const SettleArgs a{.states = floats(states),
                     .state_stride = states.step(0),
                     .head_stride = states.step(1),
                     .row_stride = states.step(2),
                     .recent = floats(args.recent),
                     .recent_stride = args.recent.step(0),
                     .recent_head_stride = args.recent.step(1),
                     .K = static_cast<int>(states.extent(2)),
                     .V = static_cast<int>(V)};
  const dim3 grid(blocks_for(V, kColumns), static_cast<unsigned>(HV), static_cast<unsigned>(R));
  settle_kernel<<<grid, kBlockThreads, 0, context.stream()>>>(a);
  check_launch("recurrence_settle");
}

}  // namespace qdelta::cuda
