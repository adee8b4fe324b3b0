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
#include "kernels/cuda/recurrence_chunk_device.cuh"

namespace qdelta::cuda {
namespace {

constexpr int kThreads = 32 * kStrips;
constexpr int kTokenSums = kChunk / 8;  // of a strip of tokens
constexpr int kSteps = kChunk / 16;

// Blocks that fit on a processor: registers hold the state, 16 columns of it to a warp. Where there are so few walks
// that each has a processor to itself, the tiles of the next chunk are copied while this one is computed: two stages.
template <class E, int kKeys, int kStages>
constexpr int kBlocks = kIsBf16<E>&& kStages == 1 ? (kKeys <= 128 ? 3 : 2) : 1;

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

  // Starts the copies of what a chunk of a head needs.
  __device__ void load(const Dims& dims, const TokensIn& q_in, const TokensIn& k_in, const TokensIn& values_in,
                       const Prepared& prepared, bool erases, std::int64_t chunk, const ChunkPlace& place, int head,
                       int column) const {
    const std::int64_t slot = chunk * dims.value_heads + head;
    load_tile<kThreads>(q, rows_of(q_in, place, head / dims.shared), place.rows, dims.keys);
    load_tile<kThreads>(k, rows_of(k_in, place, head / dims.shared), place.rows, dims.keys);
    load_tile<kThreads>(values, rows_of(values_in, place, head, column), place.rows, dims.values - column);
    const std::int64_t first = slot * kParts * kMatrix;
    for (int part = 0; part < kParts; ++part) {
      load_own_tile<kThreads, true>(attend[part], static_cast<const E*>(prepared.attend) + first + part * kMatrix,
                                    kChunk);
      if (erases)
        load_own_tile<kThreads, true>(inverse[part], static_cast<const E*>(prepared.inverse) + first + part * kMatrix,
                                      kChunk);
    }
    static_assert(kScanFactors * kChunk <= 4 * kThreads);
    const int i = 4 * static_cast<int>(threadIdx.x);
    if (i < kScanFactors * kChunk) copy_async(factors + i, prepared.factors + slot * (kFactors * kChunk) + i, true);
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
constexpr int kKeysAtOnce = kIsBf16<E>&& kStages == 2 && kKeys <= 128 ? kKeys : 64;

// The keys from `first` on of a state.
template <class E, int kSums, int kCount>
__device__ inline void fragments_of_state(FragmentA<E> (&fragments)[kCount], const Sum (&state)[kSums], int first) {
#pragma unroll
  for (int step = 0; step < kCount; ++step)
    fragments[step] = fragment_of<E>(state[first / 8 + 2 * step], state[first / 8 + 2 * step + 1]);
}

// Where registers are short, Q S waits in the place of Q while V' is made.
template <class E, int kKeys, int kStages>
constexpr bool kParks = kIsBf16<E>&& kKeys >= (kStages == 1 ? 128 : 256);
template <class E>
__device__ inline void park(E* place, const Sum (&strip)[kTokenSums]) {
#pragma unroll
  for (int j = 0; j < kTokenSums; ++j)
    reinterpret_cast<float4*>(place)[j * kThreads + threadIdx.x] = {strip[j].x[0], strip[j].x[1], strip[j].x[2],
                                                                    strip[j].x[3]};
}
template <class E>
__device__ inline void unpark(Sum (&strip)[kTokenSums], const E* place) {
#pragma unroll
  for (int j = 0; j < kTokenSums; ++j) {
    const float4 x = reinterpret_cast<const float4*>(place)[j * kThreads + threadIdx.x];
    strip[j] = {{x.x, x.y, x.z, x.w}};
  }
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
      for (int i = 0; i < 4; ++i) rest[j].x[i] = strip[j].x[i] - __bfloat162float(__float2bfloat16_rn(strip[j].x[i]));
    }
    store_strip(rest, {reinterpret_cast<std::byte*>(first + kChunk * width), width, true, true}, kChunk, kStrip, lane);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward.

template <class E, int kKeys, int kStages>
__global__ void __launch_bounds__(kThreads, (kBlocks<E, kKeys, kStages>)) forward_kernel(const ForwardScanArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Lane lane;
  const auto [unit, head, block_column, strip_begin, column] = Place(a.dims);
  const int columns = a.dims.values - column;
  const std::int64_t begin = a.one_chunk ? unit : first_chunk(a.chunks, unit);
  const std::int64_t end = begin + (a.one_chunk ? 1 : chunk_count(a.chunks, unit));
  const std::int64_t sequence = a.one_chunk ? sequence_of(a.chunks, unit) : unit;
  const bool reads_queries = a.o.data != nullptr || a.mixes;

  const auto load = [&](std::int64_t chunk) {
    if (chunk < end) {
      tiles_of<E, kKeys, kStages>(memory, chunk)
          .load(a.dims, a.q, a.k, a.v, a.prepared, a.erases, chunk, place_of(a.chunks, chunk, sequence), head,
                block_column);
    }
    commit_copies();
  };
  load(begin);
  Sum state[kKeys / 8];
  if (a.entry.data != nullptr)
    load_strip(state, matrix_of(a.entry, unit, head, 0, column), a.dims.keys, a.entry.columns - column, lane);

  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const std::int64_t slot = chunk * a.dims.value_heads + head;
    const ScanTiles<E, kKeys> tiles = tiles_of<E, kKeys, kStages>(memory, chunk);
    if (kStages == 2) {
      load(chunk + 1);
    } else if (chunk > begin) {
      load(chunk);
    }
    if (a.chunk_states.data != nullptr) {
      store_strip(state, matrix_of(a.chunk_states, chunk, head, 0, column), a.dims.keys,
                  a.chunk_states.columns - column, lane);
    }
    wait_for_copies<kStages - 1>();
    publish_tiles();
    __syncthreads();

    Sum query_reads[kTokenSums], fresh[kTokenSums];  // Q S; K S, then R, then V'
    if (reads_queries || a.erases) {
      constexpr int kAtOnce = kKeysAtOnce<E, kKeys, kStages>;
#pragma unroll
      for (int key = 0; key < kKeys; key += kAtOnce) {
        FragmentA<E> of_state[kAtOnce / 16];
        fragments_of_state(of_state, state, key);
        if (reads_queries && a.erases) {
          begin_products<E>(query_reads, fresh);
          add_rows_times(query_reads, tiles.q, of_state, key, lane);
          add_rows_times(fresh, tiles.k, of_state, key, lane);
          wait_for_products<E>(query_reads, fresh);
        } else if (reads_queries) {
          begin_products<E>(query_reads);
          add_rows_times(query_reads, tiles.q, of_state, key, lane);
          wait_for_products<E>(query_reads);
        } else {
          begin_products<E>(fresh);
          add_rows_times(fresh, tiles.k, of_state, key, lane);
          wait_for_products<E>(fresh);
        }
      }
    }
    FragmentA<E> fragments[kSteps];
#pragma unroll
    for (int j = 0; j < kTokenSums; ++j) {
      const Sum value = strip_sum(tiles.values, j, strip_begin, lane);
      const float2 write = tiles.factor(kWrite, j, lane);
      const float2 read_key = tiles.factor(kReadKey, j, lane);
      const float2 read_query = tiles.factor(kReadQuery, j, lane);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        fresh[j].x[i] = write.x * value.x[i] - read_key.x * fresh[j].x[i] - read_query.x * query_reads[j].x[i];
        fresh[j].x[i + 1] =
            write.y * value.x[i + 1] - read_key.y * fresh[j].x[i + 1] - read_query.y * query_reads[j].x[i + 1];
      }
    }
    if constexpr (kParks<E, kKeys, kStages>) {
      __syncthreads();  // Q is used up
      if (a.o.data != nullptr) park(tiles.q.data, query_reads);
    }
    if (a.erases) {
      fragments_of(fragments, fresh);
      clear(fresh);
      begin_products<E>(fresh);
#pragma unroll
      for (const auto& part : tiles.inverse) add_lower_times<false>(fresh, fragments, part, lane);
      wait_for_products<E>(fresh);
    }
    if (a.fresh != nullptr) store_parts<E>(fresh, a.fresh, a.dims, slot, column, lane);
    fragments_of(fragments, fresh);

    // O, and what the chunk leaves in the state: together, or where registers are short one after the other.
    constexpr bool kTogether = kStages == 2 && kKeys <= 128;
    FragmentA<E> remainders[kIsBf16<E> ? kSteps : 1], to_end[kSteps];
    if constexpr (kIsBf16<E>) remainders_of(remainders, fragments, fresh);
    const auto start_output = [&] {
      if constexpr (kParks<E, kKeys, kStages>) unpark(query_reads, tiles.q.data);
      scale_strip(query_reads, tiles.factor(kReadOut), lane);
    };
    const auto add_output = [&] {
      if constexpr (kIsBf16<E>) add_lower_times<false>(query_reads, remainders, tiles.attend[0], lane);
#pragma unroll
      for (const auto& part : tiles.attend) add_lower_times<false>(query_reads, fragments, part, lane);
    };
    const auto store_output = [&] {
      const ChunkPlace place = place_of(a.chunks, chunk, sequence);
      store_strip(query_reads, rows_of(a.o, place, head, column), place.rows, columns, lane);
    };
    const auto start_state = [&] {
      scale_strip(fresh, tiles.factor(kToEnd), lane);
      fragments_of(to_end, fresh);
      scale_all(state, tiles.whole_decay());
    };
    const auto add_to_state = [&] { add_rows_transposed_times<E, kKeys>(state, tiles.k, to_end, lane); };
    if constexpr (kTogether) {
      start_state();
      if (a.o.data != nullptr) {
        start_output();
        begin_products<E>(query_reads, state);
        add_output();
        add_to_state();
        wait_for_products<E>(query_reads, state);
        store_output();
      } else {
        begin_products<E>(state);
        add_to_state();
        wait_for_products<E>(state);
      }
    } else {
      if (a.o.data != nullptr) {
        start_output();
        begin_products<E>(query_reads);
        add_output();
        wait_for_products<E>(query_reads);
        store_output();
      }
      start_state();
      begin_products<E>(state);
      add_to_state();
      wait_for_products<E>(state);
    }
    __syncthreads();
  }
  if (a.exit.data != nullptr)
    store_strip(state, matrix_of(a.exit, unit, head, 0, column), a.dims.keys, a.exit.columns - column, lane);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward.

// The states on entry, read on the way back: their products with dS+ are summed up, and V' is made of them where the
// walks are many (one stage). Where registers suffice, that of the next chunk is on its way while this one is computed.
template <class E, int kKeys, int kStages>
struct EntryStates {
  static constexpr bool kKeeps = kStages == 1;
  static constexpr bool kAhead = kStages == 2 && kKeys <= 128;
  static constexpr int kFetched = kKeys < 128 ? kKeys : 128;  // keys
  uint2 pairs[kFetched / 8];
  FragmentA<E> fragments[kKeeps ? kKeys / 16 : 1];

  __device__ void fetch(const MatrixIn& from, int keys, int columns, const Lane& lane) {
    if (from.bf16 && from.vectors) fetch_strip(pairs, from, keys, columns, lane);
  }
  // Returns this lane's part of sum(S . dS+).
  __device__ float read(const Sum (&d_state)[kKeys / 8], const MatrixIn& from, int keys, int columns,
                        const Lane& lane) {
    float product = 0;
    const auto take = [&](int step, const Sum(&part)[2]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) product += d_state[2 * step + i / 4].x[i % 4] * part[i / 4].x[i % 4];
      if constexpr (kKeeps) fragments[step] = fragment_of<E>(part[0], part[1]);
    };
    if (from.bf16 && from.vectors) {
#pragma unroll
      for (int key = 0; key < kKeys; key += kFetched) {
        if (!kAhead) fetch_strip(pairs, from.below(key), keys - key, columns, lane);
#pragma unroll
        for (int i = 0; i < kFetched / 16; ++i)
          take(key / 16 + i, {strip_of(pairs[2 * i]), strip_of(pairs[2 * i + 1])});
      }
    } else {
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
        Sum part[2];
        load_strip(part, from.below(16 * step), keys - 16 * step, columns, lane);
        take(step, part);
      }
    }
    return product;
  }
};

// V' as in the forward, from the state on entry. To save registers Q S and K S have the same sums: what Q S is to be
// multiplied by, over what K S is.
template <bool kErases, class E, int kKeys>
__device__ inline void make_fresh(const BackwardScanArgs& a, const ScanTiles<E, kKeys>& tiles,
                                  const FragmentA<E> (&state)[kKeys / 16], const MatrixIn& values, int tokens,
                                  int columns, std::int64_t slot, int column, const Lane& lane) {
  Sum fresh[kTokenSums];
  if (kErases && a.mixes) {
    begin_products<E>(fresh);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      add_product<kChunk, false>(fresh, state[step], tiles.q, 0, 16 * step, lane);
    wait_for_products<E>(fresh);
    scale_strip(fresh, tiles.factor(kReadBoth), lane);
  }
  if constexpr (kErases) {
    begin_products<E>(fresh);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      add_product<kChunk, false>(fresh, state[step], tiles.k, 0, 16 * step, lane);
    wait_for_products<E>(fresh);
  }
  Sum value[kTokenSums];
  load_strip(value, values, tokens, columns, lane);
#pragma unroll
  for (int j = 0; j < kTokenSums; ++j) {
    const float2 write = tiles.factor(kWrite, j, lane);
    const float2 read_key = tiles.factor(kReadKey, j, lane);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      fresh[j].x[i] = write.x * value[j].x[i] - read_key.x * fresh[j].x[i];
      fresh[j].x[i + 1] = write.y * value[j].x[i + 1] - read_key.y * fresh[j].x[i + 1];
    }
  }
  if constexpr (kErases) {
    FragmentA<E> fragments[kSteps];
    fragments_of(fragments, fresh);
    clear(fresh);
    begin_products<E>(fresh);
#pragma unroll
    for (const auto& part : tiles.inverse) add_lower_times<false>(fresh, fragments, part, lane);
    wait_for_products<E>(fresh);
  }
  store_parts<E>(fresh, a.fresh, a.dims, slot, column, lane);
}

// Whether the rule erases is known at compile time: a branch around one of the products would make the compiler wait
// for each of them.
template <class E, int kKeys, int kStages, bool kErases>
__global__ void __launch_bounds__(kThreads, (kBlocks<E, kKeys, kStages>)) backward_kernel(const BackwardScanArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Lane lane;
  const auto [sequence, head, block_column, strip_begin, column] = Place(a.dims);
  const int columns = a.dims.values - column;
  const std::int64_t begin = first_chunk(a.chunks, sequence);
  const std::int64_t last = begin + chunk_count(a.chunks, sequence) - 1;

  using States = EntryStates<E, kKeys, kStages>;
  States states;
  const auto state_of = [&](std::int64_t chunk) { return matrix_of(a.states, chunk, head, 0, column); };
  const auto load = [&](std::int64_t chunk) {
    if (chunk >= begin) {
      tiles_of<E, kKeys, kStages>(memory, chunk)
          .load(a.dims, a.q, a.k, a.d_o, a.prepared, kErases, chunk, place_of(a.chunks, chunk, sequence), head,
                block_column);
    }
    commit_copies();
  };
  load(last);
  if (States::kAhead && last >= begin) states.fetch(state_of(last), a.dims.keys, a.states.columns - column, lane);
  Sum d_state[kKeys / 8];
  if (a.d_exit.data != nullptr)
    load_strip(d_state, matrix_of(a.d_exit, sequence, head, 0, column), a.dims.keys, a.d_exit.columns - column, lane);

  for (std::int64_t chunk = last; chunk >= begin; --chunk) {
    const std::int64_t slot = chunk * a.dims.value_heads + head;
    const ScanTiles<E, kKeys> tiles = tiles_of<E, kKeys, kStages>(memory, chunk);
    if (kStages == 2) {
      load(chunk - 1);
    } else if (chunk < last) {
      load(chunk);
    }
    store_strip(d_state, matrix_of(a.d_states, chunk, head, 0, column), a.dims.keys, a.d_states.columns - column, lane);
    float product = states.read(d_state, state_of(chunk), a.dims.keys, a.states.columns - column, lane);
    if (States::kAhead && chunk > begin)
      states.fetch(state_of(chunk - 1), a.dims.keys, a.states.columns - column, lane);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) product += __shfl_xor_sync(~0u, product, step);
    if (lane.index == 0)
      a.state_sums[(slot * a.dims.blocks + column / kColumns) * kStrips + strip_begin / kStrip] = product;
    wait_for_copies<kStages - 1>();
    publish_tiles();
    __syncthreads();

    const ChunkPlace place = place_of(a.chunks, chunk, sequence);
    if constexpr (States::kKeeps) {
      if (a.fresh != nullptr) {
        make_fresh<kErases>(a, tiles, states.fragments, rows_of(a.v, place, head, column), place.rows, columns, slot,
                            column, lane);
      }
    }

    Sum grad[kTokenSums];  // dV', then dR
    FragmentA<E> fragments[kSteps], d_out[kSteps];
    constexpr int kAtOnce = kKeysAtOnce<E, kKeys, kStages>;
#pragma unroll
    for (int key = 0; key < kKeys; key += kAtOnce) {
      FragmentA<E> of_state[kAtOnce / 16];
      fragments_of_state(of_state, d_state, key);
      begin_products<E>(grad);
      add_rows_times(grad, tiles.k, of_state, key, lane);
      wait_for_products<E>(grad);
    }
    scale_strip(grad, tiles.factor(kToEnd), lane);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      d_out[step] = fragment_of<E>(strip_sum(tiles.values, 2 * step, strip_begin, lane),
                                   strip_sum(tiles.values, 2 * step + 1, strip_begin, lane));
    }
    begin_products<E>(grad);
#pragma unroll
    for (const auto& part : tiles.attend) add_lower_times<true>(grad, d_out, part, lane);
    wait_for_products<E>(grad);
    if constexpr (kErases) {
      fragments_of(fragments, grad);
      clear(grad);
      begin_products<E>(grad);
#pragma unroll
      for (const auto& part : tiles.inverse) add_lower_times<true>(grad, fragments, part, lane);
      wait_for_products<E>(grad);
    }
    store_parts<E>(grad, a.d_residual, a.dims, slot, column, lane);

    // What multiplies Q, and what multiplies K.
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Sum of_queries[2], of_keys[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = 2 * step + half;
        const float2 read_out = tiles.factor(kReadOut, j, lane);
        const float2 read_query = tiles.factor(kReadQuery, j, lane);
        const float2 read_key = tiles.factor(kReadKey, j, lane);
        const Sum out = sum_of(d_out[step], half);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          of_queries[half].x[i] = read_out.x * out.x[i] - read_query.x * grad[j].x[i];
          of_queries[half].x[i + 1] = read_out.y * out.x[i + 1] - read_query.y * grad[j].x[i + 1];
          of_keys[half].x[i] = -read_key.x * grad[j].x[i];
          of_keys[half].x[i + 1] = -read_key.y * grad[j].x[i + 1];
        }
      }
      d_out[step] = fragment_of<E>(of_queries[0], of_queries[1]);
      fragments[step] = fragment_of<E>(of_keys[0], of_keys[1]);
    }
    scale_strip(grad, tiles.factor(kWrite), lane);
    store_strip(grad, rows_of(a.dv, place, head, column), place.rows, columns, lane);
    scale_all(d_state, tiles.whole_decay());
    begin_products<E>(d_state);
    add_rows_transposed_times<E, kKeys>(d_state, tiles.q, d_out, lane);
    if constexpr (kErases) add_rows_transposed_times<E, kKeys>(d_state, tiles.k, fragments, lane);
    wait_for_products<E>(d_state);
    __syncthreads();
  }
  if (a.d_entry.data != nullptr)
    store_strip(d_state, matrix_of(a.d_entry, sequence, head, 0, column), a.dims.keys, a.d_entry.columns - column,
                lane);
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches.

template <class E, int kKeys, int kStages>
auto kernel_for(const ForwardScanArgs& /*args*/) {
  return forward_kernel<E, kKeys, kStages>;
}
template <class E, int kKeys, int kStages>
auto kernel_for(const BackwardScanArgs& args) {
  return args.erases ? backward_kernel<E, kKeys, kStages, true> : backward_kernel<E, kKeys, kStages, false>;
}
std::int64_t walks_of(const ForwardScanArgs& args) {
  return args.one_chunk ? args.chunks.total : args.chunks.sequences;
}
std::int64_t walks_of(const BackwardScanArgs& args) { return args.chunks.sequences; }
bool fits_two_stages(const ForwardScanArgs& /*args*/) { return true; }
bool fits_two_stages(const BackwardScanArgs& args) { return args.fresh == nullptr; }

template <class E, int kKeys, int kStages, class Args>
void launch_stages(const Context& context, const Args& args, std::int64_t blocks) {
  constexpr int kMemory = (kStages - 1) * ScanTiles<E, kKeys>::kStageBytes + ScanTiles<E, kKeys>::kBytes;
  const auto kernel = kernel_for<E, kKeys, kStages>(args);
  allow_shared_memory(context, reinterpret_cast<const void*>(kernel), kMemory);
  kernel<<<static_cast<unsigned>(blocks), kThreads, kMemory, context.stream()>>>(args);
  check_launch("recurrence scan");
}

template <class E, int kKeys, class Args>
void launch(const Context& context, const Args& args) {
  const std::int64_t blocks = walks_of(args) * args.dims.value_heads * args.dims.blocks;
  if constexpr (kIsBf16<E>) {
    constexpr int kMemory = 2 * ScanTiles<E, kKeys>::kStageBytes;
    if (blocks <= context.processors() && context.shared_memory() >= kMemory && fits_two_stages(args))
      return launch_stages<E, kKeys, 2>(context, args, blocks);
  }
  launch_stages<E, kKeys, 1>(context, args, blocks);
}

template <class E, class Args>
void launch_width(const Context& context, const Args& args) {
  switch (padded_keys(args.dims.keys)) {
    case 64:
      return launch<E, 64>(context, args);
    case 128:
      return launch<E, 128>(context, args);
    default:
      return launch<E, kWidestKeys>(context, args);
  }
}

}  // namespace

void launch_forward_scan(const Context& context, const ForwardScanArgs& args, bool bf16_operands) {
  bf16_operands ? launch_width<bf16>(context, args) : launch_width<float>(context, args);
}
void launch_backward_scan(const Context& context, const BackwardScanArgs& args, bool bf16_operands) {
  bf16_operands ? launch_width<bf16>(context, args) : launch_width<float>(context, args);
}

}  // namespace qdelta::cuda
