// The two walks over the chunks of a sequence, one block for each sequence, value head and 64 value columns. A warp has
// 16 columns of the state in registers, transposed (see the strips of recurrence_chunk_device.cuh), and needs nothing
// of the other warps; the block only shares the tiles of Q, K, T and attend.
//
// Forward, S the state on entry:
//   R  = diag(write) V - diag(erase gamma) X S           X S = K S + diag(mix) Q S
//   V' = T R
//   O  = scale diag(gamma) Q S + attend V'
//   S+ = gamma_C S + (diag(Gamma_C) K)^T V'
//
// Backward, from the last chunk to the first, dS+ the gradient of S+:
//   dV' = attend^T dO + diag(Gamma_C) K dS+
//   dR  = T^T dV'                                        dV = diag(write) dR
//   dS  = gamma_C dS+ + (scale diag(gamma) Q)^T dO - (diag(erase gamma) X)^T dR
//
// and V' once more, for the gradients, where no walk forward has left it.
//
// The norms of Q and K are in the factors, so the products take q and k as they are in memory.
#pragma once

#include "kernels/cuda/recurrence_chunk_device.cuh"

namespace qdelta::cuda::scan {

inline constexpr int kThreads = 32 * kStrips;
inline constexpr int kTokenSums = kChunk / 8;  // of a strip of tokens
inline constexpr int kSteps = kChunk / 16;

// Blocks that fit on a processor: registers hold the state, 16 columns of it to a warp. Where there are so few walks
// that each has a processor to itself, the tiles of the next chunk are copied while this one is computed: two stages.
template <class E, int kKeys, int kStages>
constexpr int kBlocks = kIsBf16<E>&& kStages == 1 ? (kKeys <= 128 ? 3 : 2) : 1;
// Such a walk has registers to spare, unless the state is wide: what goes to memory or comes from there can then do so
// while products are made.
template <int kKeys, int kStages>
constexpr bool kHasRoom = kStages == 2 && kKeys <= 128;

// Where a walk's tiles come from, for the chunk that is next. The tokens of a sequence lie one behind the other, and so
// do its chunks, so going on is an addition.
template <class E>
struct ScanSources {
  MatrixIn q, k, values;  // V, or dO
  const E* inverse;
  const E* attend;
  const float* factors;
  int value_heads;

  __device__ ScanSources(const Dims& dims, const TokensIn& q_in, const TokensIn& k_in, const TokensIn& values_in,
                         const Prepared& prepared, std::int64_t chunk, const ChunkPlace& place, int head, int column)
      : q(rows_of(q_in, place, head / dims.shared)),
        k(rows_of(k_in, place, head / dims.shared)),
        values(rows_of(values_in, place, head, column)),
        value_heads(dims.value_heads) {
    const std::int64_t slot = chunk * dims.value_heads + head;
    inverse = static_cast<const E*>(prepared.inverse) + slot * kMatrices;
    attend = static_cast<const E*>(prepared.attend) + slot * kMatrices;
    factors = prepared.factors + slot * (kFactors * kChunk);
  }
  // To the next chunk, or with -1 to the one before.
  __device__ void advance(int chunks) {
    q.skip_rows(chunks * kChunk);
    k.skip_rows(chunks * kChunk);
    values.skip_rows(chunks * kChunk);
    const int slots = chunks * value_heads;
    inverse += static_cast<std::int64_t>(slots) * kMatrices;
    attend += static_cast<std::int64_t>(slots) * kMatrices;
    factors += static_cast<std::int64_t>(slots) * (kFactors * kChunk);
  }
  static constexpr int kMatrices = matrix_parts(kIsBf16<E>) * static_cast<int>(kMatrix);
};

template <class E, int kKeys>
struct ScanTiles {
  static constexpr int kParts = matrix_parts(kIsBf16<E>);
  Tile<E, kChunk, kKeys> q, k;
  Tile<E, kChunk, kColumns> values;  // V, or dO
  Tile<E, kChunk, kChunk> inverse[kParts], attend[kParts];
  float* factors;  // [kScanFactors][kChunk]

  __device__ explicit ScanTiles(unsigned char* memory) {
    q.data = reinterpret_cast<E*>(memory);
    k.data = q.data + q.kElements;
    values.data = k.data + k.kElements;
    E* next = values.data + values.kElements;
    for (auto* matrix : {inverse, attend}) {
      for (int part = 0; part < kParts; ++part, next += kMatrix) matrix[part].data = next;
    }
    factors = reinterpret_cast<float*>(next);
  }
  static constexpr int kBytes =
      (2 * kChunk * kKeys + kChunk * kColumns + 2 * kParts * static_cast<int>(kMatrix)) * static_cast<int>(sizeof(E)) +
      kScanFactors * kChunk * static_cast<int>(sizeof(float));
  static constexpr int kStageBytes = (kBytes + 1023) / 1024 * 1024;  // tiles start at such multiples

  // Starts the copies of what a chunk of `rows` tokens needs.
  __device__ void load(const ScanSources<E>& from, const Dims& dims, bool erases, int rows, int column) const {
    load_tile<kThreads>(q, from.q, rows, dims.keys);
    load_tile<kThreads>(k, from.k, rows, dims.keys);
    load_tile<kThreads>(values, from.values, rows, dims.values - column);
    for (int part = 0; part < kParts; ++part) {
      load_own_tile<kThreads, true>(attend[part], from.attend + part * kMatrix, kChunk);
      if (erases) load_own_tile<kThreads, true>(inverse[part], from.inverse + part * kMatrix, kChunk);
    }
    static_assert(kScanFactors * kChunk <= 4 * kThreads);
    const int i = 4 * static_cast<int>(threadIdx.x);
    if (i < kScanFactors * kChunk) copy_async(factors + i, from.factors + i, true);
  }
  __device__ const float* factor(Factor which) const { return factors + which * kChunk; }
  __device__ float2 factor(Factor which, int j, const Lane& lane) const {
    return *reinterpret_cast<const float2*>(factor(which) + 8 * j + 2 * lane.quad);
  }
  __device__ float whole_decay() const { return factor(kDecay)[kChunk - 1]; }
};

// What a block walks over: a sequence (or a chunk), one of its heads, columns from block_column on; and the columns of
// a warp, from strip_begin on in the block, from `column` on in all.
struct Place {
  std::int64_t unit;
  int head, block_column, strip_begin, column;

  __device__ explicit Place(const Dims& dims)
      : unit(blockIdx.x / dims.blocks / dims.value_heads),
        head(static_cast<int>(blockIdx.x / dims.blocks % dims.value_heads)),
        block_column(static_cast<int>(blockIdx.x % dims.blocks) * kColumns),
        strip_begin(static_cast<int>(threadIdx.x) / 32 * kStrip),
        column(block_column + strip_begin) {}
};

// Where the tiles of a chunk are.
template <class E, int kKeys, int kStages>
__device__ inline ScanTiles<E, kKeys> tiles_of(unsigned char* memory, std::int64_t chunk) {
  return ScanTiles<E, kKeys>(memory + static_cast<int>(chunk % kStages) * ScanTiles<E, kKeys>::kStageBytes);
}

// ---------------------------------------------------------------------------------------------------------------------
// Products with a strip, transposed like it. Between begin_products<E>() and wait_for_products<E>() they may run in the
// background.

// A strip as the left operand of products over its tokens.
template <class E>
__device__ inline void fragments_of(FragmentA<E> (&fragments)[kSteps], const Sum (&strip)[kTokenSums]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) fragments[step] = fragment_of<E>(strip[2 * step], strip[2 * step + 1]);
}
// What their rounding took off.
__device__ inline void remainders_of(FragmentA<bf16> (&remainders)[kSteps], const FragmentA<bf16> (&fragments)[kSteps],
                                     const Sum (&strip)[kTokenSums]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < 4; ++i) {
      const float* exact = strip[2 * step + i / 2].x + i % 2 * 2;
      const std::uint32_t rounded = fragments[step].x[i];
      remainders[step].x[i] = pack(exact[0] - low_half(rounded), exact[1] - high_half(rounded));
    }
  }
}

// sum += M strip for a lower triangular matrix M, or M^T strip. Only a warpgroup's own products include the zeros.
template <bool kTransposed, class E>
__device__ inline void add_lower_times(Sum (&sum)[kTokenSums], const FragmentA<E> (&strip)[kSteps],
                                       const Tile<E, kChunk, kChunk>& matrix, const Lane& lane) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if constexpr (kWarpgroup<E>) {
      add_product<kChunk, kTransposed>(sum, strip[step], matrix, kTransposed ? 16 * step : 0,
                                       kTransposed ? 0 : 16 * step, lane);
    } else {
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        if (kTransposed ? n > step : n < step) continue;
        add_product<16, kTransposed>(sum + 2 * n, strip[step], matrix, 16 * (kTransposed ? step : n),
                                     16 * (kTransposed ? n : step), lane);
      }
    }
  }
}

// sum += rows state, for keys from `first` on; rows are those of Q or K.
template <class E, int kKeys, int kCount>
__device__ inline void add_rows_times(Sum (&sum)[kTokenSums], const Tile<E, kChunk, kKeys>& rows,
                                      const FragmentA<E> (&state)[kCount], int first, const Lane& lane) {
#pragma unroll
  for (int step = 0; step < kCount; ++step)
    add_product<kChunk, false>(sum, state[step], rows, 0, first + 16 * step, lane);
}

// state += rows^T strip
template <class E, int kKeys>
__device__ inline void add_rows_transposed_times(Sum (&state)[kKeys / 8], const Tile<E, kChunk, kKeys>& rows,
                                                 const FragmentA<E> (&strip)[kSteps], const Lane& lane) {
  constexpr int kWide = kKeys < 128 ? kKeys : 128;
#pragma unroll
  for (int key = 0; key < kKeys; key += kWide) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      add_product<kWide, true>(state + key / 8, strip[step], rows, 16 * step, key, lane);
  }
}

// Keys that are multiplied at once: as many as registers suffice for, because every time is a wait.
template <class E, int kKeys, int kStages>
constexpr int kKeysAtOnce = kHasRoom<kKeys, kStages> ? kKeys : 64;

// The keys from `first` on of a state.
template <class E, int kSums, int kCount>
__device__ inline void fragments_of_state(FragmentA<E> (&fragments)[kCount], const Sum (&state)[kSums], int first) {
#pragma unroll
  for (int step = 0; step < kCount; ++step)
    fragments[step] = fragment_of<E>(state[first / 8 + 2 * step], state[first / 8 + 2 * step + 1]);
}

template <int kSums>
__device__ inline void scale_all(Sum (&sums)[kSums], float factor) {
#pragma unroll
  for (Sum& sum : sums) {
#pragma unroll
    for (float& x : sum.x) x *= factor;
  }
}
__device__ inline void clear(Sum (&strip)[kTokenSums]) {
#pragma unroll
  for (Sum& sum : strip) sum = Sum();
}

// A strip of V' or dR into the workspace, in its parts.
template <class E>
__device__ inline void store_parts(const Sum (&strip)[kTokenSums], void* data, const Dims& dims, std::int64_t slot,
                                   int column, const Lane& lane) {
  constexpr int kParts = matrix_parts(kIsBf16<E>);
  const std::int64_t width = static_cast<std::int64_t>(dims.blocks) * kColumns;
  E* first = static_cast<E*>(data) + slot * kParts * kChunk * width + column;
  store_strip(strip, {reinterpret_cast<std::byte*>(first), width, kIsBf16<E>, true}, kChunk, kStrip, lane);
  if constexpr (kIsBf16<E>) {
    Sum rest[kTokenSums];
#pragma unroll
    for (int j = 0; j < kTokenSums; ++j) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const std::uint32_t rounded = pack(strip[j].x[i], strip[j].x[i + 1]);
        rest[j].x[i] = strip[j].x[i] - low_half(rounded);
        rest[j].x[i + 1] = strip[j].x[i + 1] - high_half(rounded);
      }
    }
    store_strip(rest, {reinterpret_cast<std::byte*>(first + kChunk * width), width, true, true}, kChunk, kStrip, lane);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches of a walk, which has
//   Args                    its arguments
//   kernel<E, keys, stages>(args)
//   walks(args)             how many there are, of a head
//   takes_two_stages(args)  whether it does without what one stage has registers for

template <class Walk, class E, int kKeys, int kStages>
void launch_stages(const Context& context, const typename Walk::Args& args, std::int64_t blocks) {
  constexpr int kMemory = (kStages - 1) * ScanTiles<E, kKeys>::kStageBytes + ScanTiles<E, kKeys>::kBytes;
  const auto kernel = Walk::template kernel<E, kKeys, kStages>(args);
  allow_shared_memory(context, reinterpret_cast<const void*>(kernel), kMemory);
  kernel<<<static_cast<unsigned>(blocks), kThreads, kMemory, context.stream()>>>(args);
  check_launch("recurrence scan");
}

template <class Walk, class E, int kKeys>
void launch_width(const Context& context, const typename Walk::Args& args) {
  const std::int64_t blocks = Walk::walks(args) * args.dims.value_heads * args.dims.blocks;
  if constexpr (kIsBf16<E>) {
    constexpr int kMemory = 2 * ScanTiles<E, kKeys>::kStageBytes;
    if (blocks <= context.sm_count() && context.shared_memory() >= kMemory && Walk::takes_two_stages(args))
      return launch_stages<Walk, E, kKeys, 2>(context, args, blocks);
  }
  launch_stages<Walk, E, kKeys, 1>(context, args, blocks);
}

template <class Walk, class E>
void launch(const Context& context, const typename Walk::Args& args) {
  switch (padded_keys(args.dims.keys)) {
    case 64:
      return launch_width<Walk, E, 64>(context, args);
    case 128:
      return launch_width<Walk, E, 128>(context, args);
    default:
      return launch_width<Walk, E, kWidestKeys>(context, args);
  }
}

}  // namespace qdelta::cuda::scan
