// The product y = after(add + x w^T) of many rows by wgmma, on compute capability 9.0a, in one of two orders of sums: a
// step's (many_rows.cu) and that of the matrix library (short_product.cu).
//
// A block has 64 rows of w and a tile of rows of x; both come through a ring of stages in shared memory. Where there
// are few tiles a slice of the inner dimension is a block, and the blocks of a tile are a cluster: in the end they have
// their parts of the sums in shared memory, and each adds up those of all blocks for a share of the outputs, in the
// order of the slices. Otherwise a block has all slices, one after the other.
//
// Weights do not come from the kernel ahead: those of the first stages are fetched before it is waited for, the others
// brought into L2. With two stages on their way each of them would otherwise wait half as long as memory takes.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/step_product.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace qdelta::cuda {

inline constexpr int kTile = 64;                       // rows of w
inline constexpr int kPanelColumns = 64;               // a row of them is what wgmma's swizzle is for
inline constexpr int kPanelPacks = kPanelColumns / 8;  // of 16 bytes
inline constexpr int kSumStride = kTile + 4;           // a warp's stores are to different banks

// In which order a sum over the inner dimension is taken: kSlices slices, each the sum of kChains chains that take its
// steps of kStep elements in turn.
struct StepOrder {  // of step_product.cuh
  static constexpr int kSlices = cuda::kSlices;
  static constexpr int kChains = 2;
};
struct OneChain {
  static constexpr int kSlices = 1;
  static constexpr int kChains = 1;
};

// A stage of the inner dimension: columns of a slice.
struct Stage {
  int slice, within;  // the slice, and where in it
  int place;          // in the ring
};

// What a thread copies into every panel: 16 bytes of some rows, kPassRows apart.
template <int kPassRows>
struct Copier {
  int pack = static_cast<int>(threadIdx.x) % kPanelPacks;
  int row = static_cast<int>(threadIdx.x) / kPanelPacks;
  int place = row * kPanelColumns + (pack ^ (row % 8)) * 8;  // in the first of the rows

  // Rows from `row` on of kRows; `from`: what is copied of the first of them, `between` elements from row to row, those
  // from `rows` on are zero.
  template <int kRows>
  __device__ void copy(bf16* to, const bf16* from, std::int64_t between, int rows, bool valid) const {
#pragma unroll
    for (int i = 0; i < kRows / kPassRows; ++i) {
      const bool here = valid && row + i * kPassRows < rows;
      ptx::cp_async(to + place + i * kPassRows * kPanelColumns, here ? from + i * between : from, here);
    }
  }
};

template <After kAfter, int kRows, bool kClusters, class Order = StepOrder>
struct ManyRows {
  static constexpr int kSlices = Order::kSlices;
  static constexpr int kChains = Order::kChains;
  static constexpr int kWarpgroups = kRows >= 64 ? 2 : 1;  // each has a part of the rows
  static constexpr int kPart = kRows / kWarpgroups;
  static constexpr int kThreads = 128 * kWarpgroups;
  static constexpr int kPassRows = kThreads / kPanelPacks;
  static constexpr int kBlocks = kClusters ? kSlices : 1;  // of a cluster
  static constexpr int kOutputs = kIsSwiglu<kAfter> ? kTile / 2 : kTile;
  static constexpr int kGroups = kPart / 8;
  // Two panels to a stage are fewer barriers; of short slices there are few stages anyway.
  static constexpr int kPanels = kSlices == 1 || kRows > 32 ? 2 : 1;
  static constexpr int kStageColumns = kPanels * kPanelColumns;
  static constexpr int kStageElements = (kTile + kRows) * kStageColumns;  // panels of w, then of x
  static constexpr int kStages = kRows > 32 ? 3 : kSlices == 1 ? 6 : 4;
  static constexpr std::size_t kShared =
      std::max(kStages * kStageElements * sizeof(bf16), std::size_t{kRows} * kSumStride * sizeof(float));
  using Sums = float[kGroups][4];

  const StepProductArgs& a;
  unsigned char* shared;
  int tile, block, first_row;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int warp = static_cast<int>(threadIdx.x) / 32;
  Copier<kPassRows> copier;
  const bf16 *weights, *x;       // what this thread copies of their first columns
  std::int64_t weights_between;  // elements from one of its rows to the next
  int weight_rows;               // of the tile that there are, as the copier counts them
  Sums sums[kChains];            // of a slice

  __device__ ManyRows(const StepProductArgs& args, unsigned char* memory)
      : a(args),
        shared(memory),
        tile(static_cast<int>(blockIdx.x) / kBlocks),
        block(static_cast<int>(blockIdx.x) % kBlocks),
        first_row(static_cast<int>(blockIdx.y) * kRows) {
    const int row = copier.row;
    const int c = copier.pack * 8;
    const int left = a.outputs - tile * kOutputs;
    x = static_cast<const bf16*>(a.x) + min(first_row + row, a.rows - 1) * a.x_ld + c;
    weights = weight_row(row) + c;
    if constexpr (kIsSwiglu<kAfter>) {
      weights_between = kPassRows / 2 * a.w_ld;
      weight_rows = left / 8 * 16 + (left % 8 > row % 8 ? 16 : 0);
    } else {
      weights_between = kPassRows * a.w_ld;
      weight_rows = left;
    }
  }
  // Row `row` of the tile; of those beyond the last, another one.
  [[nodiscard]] __device__ const bf16* weight_row(int row) const {
    if constexpr (kIsSwiglu<kAfter>) {  // of 16 rows 8 are gate's, then 8 up's
      const int o = tile * kOutputs + row / 16 * 8 + row % 8;
      return a.w + (min(o, a.outputs - 1) + (row % 16 < 8 ? 0 : a.outputs)) * a.w_ld;
    } else {
      return a.w + min(tile * kOutputs + row, a.outputs - 1) * a.w_ld;
    }
  }

  // This block's stages.
  [[nodiscard]] __device__ Stage first() const { return {block, 0, 0}; }
  [[nodiscard]] __device__ bool beyond(const Stage& stage) const {
    return stage.slice >= (kClusters ? block + 1 : kSlices);
  }
  __device__ void advance(Stage& stage) const {
    stage.within += kStageColumns;
    if (stage.within >= a.slice_width) {
      stage.within = 0;
      ++stage.slice;
    }
    stage.place = stage.place + 1 < kStages ? stage.place + 1 : 0;
  }
  [[nodiscard]] __device__ int column(const Stage& stage) const { return stage.slice * a.slice_width + stage.within; }
  // Whether what this thread copies of a panel is within the slice and the row.
  [[nodiscard]] __device__ bool has_columns(const Stage& stage, int panel) const {
    const int c = panel * kPanelColumns + copier.pack * 8;
    return stage.within + c < a.slice_width && column(stage) + c < a.inner;
  }

  [[nodiscard]] __device__ bf16* stage_weights(const Stage& stage) const {
    return reinterpret_cast<bf16*>(shared) + stage.place * kStageElements;
  }
  [[nodiscard]] __device__ bf16* stage_x(const Stage& stage) const {
    return stage_weights(stage) + kTile * kStageColumns;
  }
  // The panels of a stage, from where this thread copies in the first column.
  template <int kOf>
  __device__ void fetch(const Stage& stage, bf16* to, const bf16* from, std::int64_t between, int rows) const {
    if (beyond(stage)) return;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const bool valid = has_columns(stage, panel);
      copier.template copy<kOf>(to + panel * kOf * kPanelColumns,
                                from + (valid ? column(stage) + panel * kPanelColumns : 0), between, rows, valid);
    }
  }
  __device__ void fetch_weights(const Stage& stage) const {
    fetch<kTile>(stage, stage_weights(stage), weights, weights_between, weight_rows);
  }
  // This block's weights from a stage on, into L2.
  __device__ void prefetch_weights(const Stage& stage) const {
    if (threadIdx.x >= kTile || beyond(stage)) return;
    const int begin = column(stage);
    const int end = kClusters ? min((block + 1) * a.slice_width, a.inner) : a.inner;
    if (begin >= end) return;
    ptx::prefetch_bytes(weight_row(static_cast<int>(threadIdx.x)) + begin,
                        static_cast<unsigned>(end - begin) * static_cast<unsigned>(sizeof(bf16)));
  }
  __device__ void fetch_x(const Stage& stage) const {
    fetch<kRows>(stage, stage_x(stage), x, kPassRows * a.x_ld, a.rows - first_row);
  }

  // Starts a stage's products, once it is here.
  __device__ void multiply(const Stage& stage) {
    ptx::cp_async_wait<kStages - 2>();
    fence_async_proxy();
    __syncthreads();
    const bf16* own_x = stage_x(stage) + warp / 4 * kPart * kPanelColumns;
    constexpr int kPanelSteps = kPanelColumns / kStep;
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kPanels * kPanelSteps; ++i) {
      const int panel = i / kPanelSteps;
      const int bytes = i % kPanelSteps * kStep * static_cast<int>(sizeof(bf16));
      wgmma_bf16(sums[i % kChains], wgmma_operand(stage_weights(stage) + panel * kTile * kPanelColumns, bytes),
                 wgmma_operand(own_x + panel * kRows * kPanelColumns, bytes), i >= kChains || stage.within > 0);
    }
    wgmma_commit();
  }
  // The sum of a slice.
  [[nodiscard]] __device__ float sum(int n, int i) const {
    if constexpr (kChains == 1) return sums[0][n][i];
    return sums[0][n][i] + sums[kChains - 1][n][i];
  }

  // All stages, one after the other; at_end(slice) when a slice is complete.
  template <class AtEnd>
  __device__ void run(const AtEnd& at_end) {
    Stage ahead = first();
    for (int i = 0; i < kStages - 1; ++i, advance(ahead)) fetch_weights(ahead);
    prefetch_weights(ahead);
    ptx::wait_for_previous();
    Stage early = first();
    for (int i = 0; i < kStages - 1; ++i, advance(early)) {
      fetch_x(early);
      ptx::cp_async_commit();
    }
    for (Stage stage = first(); !beyond(stage);) {
      multiply(stage);
      // All warps have the products of the stage before behind them, whose place this takes.
      fetch_weights(ahead);
      fetch_x(ahead);
      ptx::cp_async_commit();  // an empty group beyond the last
      advance(ahead);
      const int slice = stage.slice;
      advance(stage);
      wgmma_wait();
      if (stage.within == 0) at_end(slice);
    }
  }

  // [row][row of w] in shared memory, in the place of the stages.
  template <class Value>
  __device__ void store_sums(const Value& value) const {
    ptx::cp_async_wait<0>();
    __syncthreads();
    auto* to = reinterpret_cast<float*>(shared) + warp / 4 * kPart * kSumStride;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = n * 8 + lane % 4 * 2 + i % 2;
        to[row * kSumStride + warp % 4 * 16 + lane / 4 + i / 2 * 8] = value(n, i);
      }
    }
    if constexpr (kClusters) {
      cluster_barrier();
    } else {
      __syncthreads();
    }
  }
  // The sums of kVector elements over the slices, in their order.
  static constexpr int kVector = kRows <= 32 ? 1 : 4;  // few outputs are one for each thread
  using Vector = Pack<float, kVector>;
  [[nodiscard]] __device__ Vector total(int row, int output) const {
    const auto* own = reinterpret_cast<const Vector*>(shared + (row * kSumStride + output) * sizeof(float));
    Vector sum{};
    if constexpr (kClusters) {
      Vector parts[kBlocks];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) load_from_block(parts[i].values, own, i);
      sum = parts[0];
#pragma unroll
      for (int i = 1; i < kBlocks; ++i) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum.values[e] += parts[i].values[e];
      }
    } else {
      sum = *own;
    }
    return sum;
  }
  // This block's share of the outputs.
  __device__ void store_outputs() const {
    constexpr int kVectors = kOutputs / kVector;
    const int rows = min(kRows, a.rows - first_row);
#pragma unroll(kClusters ? 1 : 2)
    for (int i = block * kThreads + static_cast<int>(threadIdx.x); i < rows * kVectors; i += kBlocks * kThreads) {
      const int row = i / kVectors;
      const int u = i % kVectors * kVector;
      const int r = first_row + row;
      const int o = tile * kOutputs + u;
      ConvTap taps[kVector];
      float add[kVector] = {};
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        if (o + e >= a.outputs) continue;
        if constexpr (kAfter == After::conv) taps[e] = ConvTap(a, r, o + e);
        if (kAfter == After::nothing && a.add.data != nullptr) add[e] = a.add.get(r * a.add.ld + o + e);
      }
      const int at = kIsSwiglu<kAfter> ? u / 8 * 16 + u % 8 : u;
      const Vector value = total(row, at);
      Vector up{};
      if constexpr (kIsSwiglu<kAfter>) up = total(row, at + 8);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        if (o + e < a.outputs) store_output<kAfter>(a, r, o + e, taps[e], value[e], up[e], add[e]);
      }
    }
  }
};

template <After kAfter, int kRows, bool kClusters, class Order>
__global__ __launch_bounds__(ManyRows<kAfter, kRows, kClusters, Order>::kThreads) void many_rows_kernel(
    const __grid_constant__ StepProductArgs a) {
  using Product = ManyRows<kAfter, kRows, kClusters, Order>;
  extern __shared__ __align__(1024) unsigned char shared[];
  ptx::let_next_begin();
  Product product(a, shared);
  if constexpr (kClusters) {
    product.run([](int /*slice*/) {});
    product.store_sums([&](int n, int i) { return product.sum(n, i); });
    product.store_outputs();
    cluster_barrier();  // others may still read this block's sums
  } else {
    typename Product::Sums totals;
    product.run([&](int slice) {
#pragma unroll
      for (int i = 0; i < Product::kGroups * 4; ++i) {
        float& total = totals[i / 4][i % 4];
        total = slice == 0 ? product.sum(i / 4, i % 4) : total + product.sum(i / 4, i % 4);
      }
    });
    product.store_sums([&](int n, int i) { return totals[n][i]; });
    product.store_outputs();
  }
}

// Host ---------------------------------------------------------------------------------------------------------------

template <After kAfter, int kRows, bool kClusters, class Order = StepOrder>
void launch_many_rows(const Context& context, const StepProductArgs& a) {
  using Product = ManyRows<kAfter, kRows, kClusters, Order>;
  const auto kernel = many_rows_kernel<kAfter, kRows, kClusters, Order>;
  QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Product::kShared));
  const dim3 grid(blocks_for(a.outputs, Product::kOutputs) * Product::kBlocks, blocks_for(a.rows, kRows));
  launch_overlapped_clusters(context, "many_rows_product", kernel, Product::kBlocks, grid, Product::kThreads,
                             Product::kShared, a);
}

}  // namespace qdelta::cuda
