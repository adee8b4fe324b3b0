// What becomes of the recent tokens beside a state (kernels/recurrence.h):
//
//   settle   S <- w S + sum over the tokens j of w_j k_j r_j^T, and then there are none
//   undo     the last ones are there no more
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
  const RecentRange range(recent, first_column);
  const RecentDecays decays(recent, range);
  const float state_weight = decays.of_state();
  float residuals[kRecentTokens];
#pragma unroll
  for (int j = 0; j < kRecentTokens; ++j) {
    const float weight = decays.behind(j);
    residuals[j] = j < range.count && column < a.V ? weight * recent.residuals[range.row(j) * a.V + column] : 0.0F;
  }
  if (range.count == 0) return;
  float* state = a.states + row * a.state_stride + head * a.head_stride + column;
  for (int k = static_cast<int>(threadIdx.x) / kColumns; k < a.K && column < a.V; k += kRows) {
    float sum = state_weight * state[k * a.row_stride];
#pragma unroll
    for (int j = 0; j < kRecentTokens; ++j) {
      if (j < range.count) sum = fmaf(recent.keys[range.row(j) * a.K + k], residuals[j], sum);
    }
    state[k * a.row_stride] = sum;
  }
  __syncthreads();  // all have read the number
  if (static_cast<int>(threadIdx.x) < kColumns && column < a.V) recent.counts[column] = 0;
}

struct UndoArgs {
  float* recent;
  std::int64_t recent_stride, recent_head_stride;
  int K, V;
  float tokens;
};

__global__ __launch_bounds__(kBlockThreads) void undo_kernel(const __grid_constant__ UndoArgs a) {
  const auto column = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (column >= a.V) return;
  const auto head = static_cast<std::int64_t>(blockIdx.y);
  const auto row = static_cast<std::int64_t>(blockIdx.z);
  const RecentOfHead recent(a.recent + row * a.recent_stride + head * a.recent_head_stride, a.K, a.V);
  recent.counts[column] = fmaxf(recent.counts[column] - a.tokens, 0.0F);
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

void recurrence_undo(const Context& context, const RecurrenceUndo& args) {
  check(args);
  const std::int64_t R = args.recent.extent(0);
  const std::int64_t HV = args.recent.extent(1);
  if (R * HV * args.V == 0) return;
  require(R < 65536 && HV < 65536, "the tokens of {} states of {} heads are too many for one launch", R, HV);
  const UndoArgs a{.recent = floats(args.recent),
                   .recent_stride = args.recent.step(0),
                   .recent_head_stride = args.recent.step(1),
                   .K = static_cast<int>(args.K),
                   .V = static_cast<int>(args.V),
                   .tokens = static_cast<float>(args.tokens)};
  const dim3 grid(blocks_for(args.V, kBlockThreads), static_cast<unsigned>(HV), static_cast<unsigned>(R));
  undo_kernel<<<grid, kBlockThreads, 0, context.stream()>>>(a);
  check_launch("recurrence_undo");
}

}  // namespace qdelta::cuda
