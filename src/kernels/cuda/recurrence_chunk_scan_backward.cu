// The walk back: dv, the gradients of the states, and what the gradients of the rest start from. Formulas in
// recurrence_chunk_scan.cuh.
#include "kernels/cuda/recurrence_chunk_scan.cuh"

namespace qdelta::cuda {
namespace {

using namespace scan;

// The states on entry, read on the way back: their products with dS+ are summed up, and V' is made of them where the
// walks are many (one stage). Where registers suffice, that of the next chunk is on its way while this one is computed.
template <class E, int kKeys, int kStages>
struct EntryStates {
  static constexpr bool kKeeps = kStages == 1;
  static constexpr bool kAhead = kHasRoom<kKeys, kStages>;
  static constexpr int kFetched = kKeys < 128 ? kKeys : 128;  // keys
  uint2 pairs[kFetched / 8];
  FragmentA<E> fragments[kKeeps ? kKeys / 16 : 1];

  __device__ void fetch(const MatrixIn& from, int keys, int columns, const Lane& lane) {
    if (from.bf16 && from.vectors) fetch_strip(pairs, from, keys, columns, lane);
  }
  // Returns this lane's part of sum(S . dS+).
  __device__ float read(const Sum (&d_state)[kKeys / 8], const MatrixIn& from, int keys, int columns,
                        const Lane& lane) {
    float products[4] = {};  // sums of their own, so that none waits for the one before
    const auto take = [&](int step, const Sum(&part)[2]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) products[i % 4] += d_state[2 * step + i / 4].x[i % 4] * part[i / 4].x[i % 4];
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
        gather_strip(part, from.below(16 * step), keys - 16 * step, columns, lane);
        take(step, part);
      }
    }
    return (products[0] + products[1]) + (products[2] + products[3]);
  }
};

// V' as in the forward, from the state on entry. To save registers Q S and K S have the same sums: what Q S is to be
// multiplied by, over what K S is.
template <class E, int kKeys>
__device__ inline void make_fresh(const BackwardScanArgs& a, bool erases, const ScanTiles<E, kKeys>& tiles,
                                  const FragmentA<E> (&state)[kKeys / 16], const MatrixIn& values, int tokens,
                                  int columns, std::int64_t slot, int column, const Lane& lane) {
  Sum fresh[kTokenSums];
  if (erases && a.mixes) {
    begin_products<E>(fresh);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      add_product<kChunk, false>(fresh, state[step], tiles.q, 0, 16 * step, lane);
    wait_for_products<E>(fresh);
    scale_strip(fresh, tiles.factor(kReadBoth), lane);
  }
  if (erases) {
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
  if (erases) {
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

// Whether the rule erases is known at compile time in bf16: no branch around products (see begin_products).
template <class E, int kKeys, int kStages, bool kErases>
__global__ void __launch_bounds__(kThreads, (kBlocks<E, kKeys, kStages>)) backward_kernel(const BackwardScanArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const bool erases = kIsBf16<E> ? kErases : a.erases;
  const Lane lane;
  const auto [sequence, head, block_column, strip_begin, column] = Place(a.dims);
  const int columns = a.dims.values - column;
  const std::int64_t begin = first_chunk(a.chunks, sequence);
  const std::int64_t last = begin + chunk_count(a.chunks, sequence) - 1;

  using States = EntryStates<E, kKeys, kStages>;
  States states;
  const auto state_of = [&](std::int64_t chunk) { return matrix_of(a.states, chunk, head, 0, column); };
  const auto sources_of = [&](std::int64_t chunk) {
    return ScanSources<E>(a.dims, a.q, a.k, a.d_o, a.prepared, chunk, place_of(a.chunks, chunk, sequence), head,
                          block_column);
  };
  ScanSources<E> next = sources_of(last);
  const auto load = [&](std::int64_t chunk) {
    if (chunk >= begin) {
      if (kStages == 1) next = sources_of(chunk);  // registers are short
      tiles_of<E, kKeys, kStages>(memory, chunk)
          .load(next, a.dims, erases, place_of(a.chunks, chunk, sequence).rows, block_column);
      if (kStages == 2) next.advance(-1);
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
    // What the chunk leaves in memory.
    constexpr bool kMeanwhile = kHasRoom<kKeys, kStages>;
    const auto leave_state = [&] {
      store_strip(d_state, matrix_of(a.d_states, chunk, head, 0, column), a.dims.keys, a.d_states.columns - column,
                  lane);
      float product = states.read(d_state, state_of(chunk), a.dims.keys, a.states.columns - column, lane);
      if (States::kAhead && chunk > begin)
        states.fetch(state_of(chunk - 1), a.dims.keys, a.states.columns - column, lane);
#pragma unroll
      for (int step = 1; step < 32; step *= 2) product += __shfl_xor_sync(~0u, product, step);
      if (lane.index == 0)
        a.state_sums[(slot * a.dims.blocks + column / kColumns) * kStrips + strip_begin / kStrip] = product;
    };
    if (!kMeanwhile) leave_state();
    wait_for_copies<kStages - 1>();
    publish_tiles();
    __syncthreads();

    const ChunkPlace place = place_of(a.chunks, chunk, sequence);
    if constexpr (States::kKeeps) {
      if (a.fresh != nullptr) {
        make_fresh(a, erases, tiles, states.fragments, rows_of(a.v, place, head, column), place.rows, columns, slot,
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
      if (kMeanwhile && key == 0) leave_state();
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
    if (erases) {
      fragments_of(fragments, grad);
      clear(grad);
      begin_products<E>(grad);
#pragma unroll
      for (const auto& part : tiles.inverse) add_lower_times<true>(grad, fragments, part, lane);
      wait_for_products<E>(grad);
    }

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
    const auto leave_gradients = [&] {
      store_parts<E>(grad, a.d_residual, a.dims, slot, column, lane);
      scale_strip(grad, tiles.factor(kWrite), lane);
      store_strip(grad, rows_of(a.dv, place, head, column), place.rows, columns, lane);
    };
    if (!kMeanwhile) leave_gradients();
    scale_all(d_state, tiles.whole_decay());
    begin_products<E>(d_state);
    add_rows_transposed_times<E, kKeys>(d_state, tiles.q, d_out, lane);
    if (erases) add_rows_transposed_times<E, kKeys>(d_state, tiles.k, fragments, lane);
    if (kMeanwhile) leave_gradients();
    wait_for_products<E>(d_state);
    __syncthreads();
  }
  if (a.d_entry.data != nullptr)
    store_strip(d_state, matrix_of(a.d_entry, sequence, head, 0, column), a.dims.keys, a.d_entry.columns - column,
                lane);
}

struct BackwardWalk {
  using Args = BackwardScanArgs;
  template <class E, int kKeys, int kStages>
  static auto kernel(const Args& args) {
    if constexpr (kIsBf16<E>) {
      if (!args.erases) return backward_kernel<E, kKeys, kStages, false>;
    }
    return backward_kernel<E, kKeys, kStages, true>;
  }
  static std::int64_t walks(const Args& args) { return args.chunks.sequences; }
  static bool takes_two_stages(const Args& args) { return args.fresh == nullptr; }
};

}  // namespace

void launch_backward_scan(const Context& context, const BackwardScanArgs& args, bool bf16_operands) {
  bf16_operands ? launch<BackwardWalk, bf16>(context, args) : launch<BackwardWalk, float>(context, args);
}

}  // namespace qdelta::cuda
