// A step's product (step_product.cuh) of a few rows, with what comes before and after it in one launch.
//
// Bound by reading w once. A block has a tile of rows of w, 8 or 16 (for silu(gate) up 8 of gate and the same of up),
// each of its warps a slice of the inner dimension: the weights are A of m16n8k16, the rows of x the columns of B.
//
// Weights, norm weights and the convolution's state do not come from the kernel ahead: the first of them are loaded
// into registers, the rest into L2, before it is waited for.
#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/step_product.cuh"

namespace qdelta::cuda {
namespace {

constexpr int kWarps = kBlockThreads / 32;
static_assert(kWarps == kSlices);

// Between the rows of x in shared memory: they begin in different banks.
__host__ __device__ int x_stride(int inner) { return (inner + 63) / 64 * 64 + 32; }

// x as the product reads it, in shared memory ------------------------------------------------------------------------

__device__ void stage_rows(const StepProductArgs& a, bf16* staged) {
  const int packs = a.inner / 8;
  for (int i = static_cast<int>(threadIdx.x); i < a.rows * packs; i += kBlockThreads) {
    const int r = i / packs;
    const int c = (i - r * packs) * 8;
    *reinterpret_cast<uint4*>(staged + r * x_stride(a.inner) + c) =
        *reinterpret_cast<const uint4*>(static_cast<const bf16*>(a.x) + r * a.x_ld + c);
  }
}

template <Before kBefore, int kRows>
__device__ void stage(const StepProductArgs& a, float (*sums)[kRows], bf16* staged) {
  if constexpr (kBefore != Before::nothing)
    prefetch_norm_weights<kBlockThreads>(a.norm_weight, kBefore == Before::norm ? a.inner : a.head_width);
  ptx::wait_for_previous();
  if constexpr (kBefore == Before::norm) {
    normalise<kRows>(a, 0, sums, staged, x_stride(a.inner));
  } else if constexpr (kBefore == Before::gated_norm) {
    for (int i = static_cast<int>(threadIdx.x) / 32; i < a.rows * a.heads; i += kWarps) {
      const int r = kRows == 1 ? 0 : i / a.heads;
      normalise_head(a, r, i - r * a.heads, staged + r * x_stride(a.inner));
    }
  } else {
    stage_rows(a, staged);
  }
  __syncthreads();
}

// The kernel ---------------------------------------------------------------------------------------------------------

// The rows of w that a block has at a time, kTile of them (8 or 16), and what a lane has of them in registers.
template <After kAfter, int kTile>
struct WeightTile {
  static constexpr int kOutputs = kAfter == After::swiglu ? kTile / 2 : kTile;
  static constexpr int kHalves = kTile / 8;  // rows of a lane
  static constexpr int kInFlight = 16 / kHalves;
  const StepProductArgs& a;
  int own;   // of its warp's first step a lane has 4 elements from here on
  int left;  // elements of the slice from there on
  uint2 w[kInFlight][kHalves];

  __device__ explicit WeightTile(const StepProductArgs& args) : a(args) {
    const int slice = static_cast<int>(threadIdx.x) / 32 * a.slice_width;
    const int within = static_cast<int>(threadIdx.x) % 4 * 4;
    own = slice + within;
    left = min(a.slice_width, a.inner - slice) - within;
  }
  [[nodiscard]] __device__ int count() const { return (a.outputs + kOutputs - 1) / kOutputs; }
  // Row `row` of a tile; null beyond the last.
  [[nodiscard]] __device__ const bf16* row_of(int tile, int row) const {
    const int o = tile * kOutputs + row % kOutputs;
    const int up = kAfter == After::swiglu && row >= kOutputs ? a.outputs : 0;
    return o < a.outputs ? a.w + (o + up) * a.w_ld : nullptr;
  }
  // Steps from `from` on into registers.
  __device__ void load(int tile, int from) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const bf16* row = row_of(tile, half * 8 + static_cast<int>(threadIdx.x) % 32 / 4);
      const bf16* first = row + own + from * kStep;
      const int count = row != nullptr ? left - from * kStep : 0;
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) w[j][half] = ptx::load_8_bytes(first + j * kStep, j * kStep < count);
    }
  }
  // Into L2.
  __device__ void prefetch(int tile) const {
    if (threadIdx.x >= kTile) return;
    const bf16* row = row_of(tile, static_cast<int>(threadIdx.x));
    if (row != nullptr) ptx::prefetch_bytes(row, static_cast<unsigned>(a.inner) * sizeof(bf16));
  }
  // What begins a tile: its first columns into registers, the others and the tile after it into L2.
  __device__ void begin(int tile) {
    load(tile, 0);
    if (a.slice_width > kInFlight * kStep) prefetch(tile);
    prefetch(tile + static_cast<int>(gridDim.x));
  }
  // The products of the steps that are loaded, from `from` on.
  __device__ void multiply(int from, const bf16* staged, float (&products)[2][4]) const {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    const int count = row < a.rows ? left - from * kStep : 0;
    const bf16* first = staged + row * x_stride(a.inner) + own + from * kStep;
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      uint2 x{};
      if (j * kStep < count) x = *reinterpret_cast<const uint2*>(first + j * kStep);
      const uint2 low = w[j][0];
      const uint2 high = kHalves == 2 ? w[j][kHalves - 1] : uint2{};
      ptx::mma_bf16(products[j % 2], {low.x, high.x, low.y, high.y}, {x.x, x.y});
    }
  }
};

template <Before kBefore, After kAfter, int kTile, int kRows>
__global__ __launch_bounds__(kBlockThreads, kRows == 1 && kBefore != Before::gated_norm
                                                ? 3
                                                : 2) void few_rows_kernel(const __grid_constant__ StepProductArgs a) {
  using Tile = WeightTile<kAfter, kTile>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float sums[kWarps][kRows];
  __shared__ float partials[2][kSlices][kTile][kFewRows];
  auto* staged = reinterpret_cast<bf16*>(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto stride = static_cast<int>(gridDim.x);
  ptx::let_next_begin();
  Tile weights(a);
  auto tile = static_cast<int>(blockIdx.x);
  weights.begin(tile);
  // The output and row that a thread stores in the end.
  const int own_output = static_cast<int>(threadIdx.x) % Tile::kOutputs;
  const int own_row = static_cast<int>(threadIdx.x) / Tile::kOutputs;
  ConvTap tap;
  if constexpr (kAfter == After::conv) tap = ConvTap(a, own_row, tile * Tile::kOutputs + own_output);
  stage<kBefore, kRows>(a, sums, staged);

  for (int turn = 0; tile < weights.count(); tile += stride, turn ^= 1) {
    const int o = tile * Tile::kOutputs + own_output;
    const bool stores = own_row < a.rows && o < a.outputs;
    float add = 0;
    if (kAfter == After::nothing && a.add.data != nullptr && stores) add = a.add.get(own_row * a.add.ld + o);
    float products[2][4] = {};
    for (int from = 0; from * kStep < a.slice_width; from += Tile::kInFlight) {
      if (from > 0) weights.load(tile, from);
      weights.multiply(from, staged, products);
    }
    weights.begin(tile + stride);
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) {
      partials[turn][warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = products[0][i] + products[1][i];
    }
    __syncthreads();
    if (!stores) continue;
    const auto total = [&](int row) {
      float sum = partials[turn][0][row][own_row];
#pragma unroll
      for (int slice = 1; slice < kSlices; ++slice) sum += partials[turn][slice][row][own_row];
      return sum;
    };
    const float up = kAfter == After::swiglu ? total(own_output + Tile::kOutputs) : 0.0F;
    store_output<kAfter>(a, own_row, o, tap, total(own_output), up, add);
    if constexpr (kAfter == After::conv) tap = ConvTap(a, own_row, o + stride * Tile::kOutputs);
  }
}

// Host ---------------------------------------------------------------------------------------------------------------

template <Before kBefore, After kAfter, int kTile, int kRows>
void launch(const Context& context, const StepProductArgs& a) {
  const auto kernel = few_rows_kernel<kBefore, kAfter, kTile, kRows>;
  const std::size_t shared = few_rows_shared(a.rows, a.inner);
  if (shared > (32 << 10)) {
    QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostFewRowsShared));
  }
  const std::int64_t tiles = ceil_div(a.outputs, WeightTile<kAfter, kTile>::kOutputs);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles, 4LL * context.sm_count()));
  launch_overlapped(context, "few_rows_product", kernel, blocks, kBlockThreads, shared, a);
}

template <Before kBefore, After kAfter, int kTile>
void dispatch_rows(const Context& context, const StepProductArgs& a) {
  if (a.rows == 1) return launch<kBefore, kAfter, kTile, 1>(context, a);
  launch<kBefore, kAfter, kTile, kFewRows>(context, a);
}

template <Before kBefore>
void dispatch_tile(const Context& context, const StepProductArgs& a) {
  if (a.outputs >= kFewOutputs) return dispatch_rows<kBefore, After::nothing, 16>(context, a);
  dispatch_rows<kBefore, After::nothing, 8>(context, a);
}

}  // namespace

std::size_t few_rows_shared(std::int64_t rows, std::int64_t inner) {
  return static_cast<std::size_t>(rows * x_stride(static_cast<int>(inner))) * sizeof(bf16);
}

void few_rows_product(const Context& context, Before before, After after, const StepProductArgs& a) {
  if (after == After::conv) return dispatch_rows<Before::norm, After::conv, 16>(context, a);
  if (after == After::swiglu) return dispatch_rows<Before::norm, After::swiglu, 16>(context, a);
  if (before == Before::norm) return dispatch_tile<Before::norm>(context, a);
  if (before == Before::gated_norm) return dispatch_tile<Before::gated_norm>(context, a);
  dispatch_tile<Before::nothing>(context, a);
}

}  // namespace qdelta::cuda
