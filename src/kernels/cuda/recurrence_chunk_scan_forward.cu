// The walk forward: O, and the states that it goes through. Formulas in recurrence_chunk_scan.cuh.
#include "kernels/cuda/recurrence_chunk_scan.cuh"

namespace qdelta::cuda {
namespace {

using namespace scan;

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

  const auto sources_of = [&](std::int64_t chunk) {
    return ScanSources<E>(a.dims, a.q, a.k, a.v, a.prepared, chunk, place_of(a.chunks, chunk, sequence), head,
                          block_column);
  };
  ScanSources<E> next = sources_of(begin);
  const auto load = [&](std::int64_t chunk) {
    if (chunk < end) {
      if (kStages == 1) next = sources_of(chunk);  // registers are short
      tiles_of<E, kKeys, kStages>(memory, chunk)
          .load(next, a.dims, a.erases, place_of(a.chunks, chunk, sequence).rows, block_column);
      if (kStages == 2) next.advance(1);
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
    // The state goes to memory, and the next chunk's copies are started.
    constexpr bool kMeanwhile = kHasRoom<kKeys, kStages>;
    const auto leave_state = [&] {
      if (a.chunk_states.data != nullptr) {
        store_strip(state, matrix_of(a.chunk_states, chunk, head, 0, column), a.dims.keys,
                    a.chunk_states.columns - column, lane);
      }
    };
    if constexpr (!kMeanwhile) {
      if (kStages == 2) load(chunk + 1);
      if (kStages == 1 && chunk > begin) load(chunk);
      leave_state();
    }
    wait_for_copies<kMeanwhile ? 0 : kStages - 1>();
    publish_tiles();
    __syncthreads();

    Sum query_reads[kTokenSums], fresh[kTokenSums];  // Q S; K S, then R, then V'
    constexpr int kAtOnce = kKeysAtOnce<E, kKeys, kStages>;
    static_assert(!kMeanwhile || kAtOnce == kKeys);
#pragma unroll
    for (int key = 0; key < kKeys; key += kAtOnce) {
      FragmentA<E> of_state[kAtOnce / 16];
      fragments_of_state(of_state, state, key);
      begin_products<E>(query_reads, fresh);
      if (reads_queries) add_rows_times(query_reads, tiles.q, of_state, key, lane);
      if (a.erases) add_rows_times(fresh, tiles.k, of_state, key, lane);
      if constexpr (kMeanwhile) {
        leave_state();
        load(chunk + 1);
      }
      wait_for_products<E>(query_reads, fresh);
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
    if constexpr (kMeanwhile) {
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

struct ForwardWalk {
  using Args = ForwardScanArgs;
  template <class E, int kKeys, int kStages>
  static auto kernel(const Args& /*args*/) {
    return forward_kernel<E, kKeys, kStages>;
  }
  static std::int64_t walks(const Args& args) { return args.one_chunk ? args.chunks.total : args.chunks.sequences; }
  static bool takes_two_stages(const Args& /*args*/) { return true; }
};

}  // namespace

void launch_forward_scan(const Context& context, const ForwardScanArgs& args, bool bf16_operands) {
  bf16_operands ? launch<ForwardWalk, bf16>(context, args) : launch<ForwardWalk, float>(context, args);
}

}  // namespace qdelta::cuda
