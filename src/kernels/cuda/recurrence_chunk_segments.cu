// States at the borders of segments, so that few long sequences fill the GPU. A segment maps its entry state S to
//
//   S_out = M S + N          M [K][K], N [K][V]: the scan of the segment from S = I without V, and from S = 0
//
// exactly, since a scan is linear in its state. Once M and N of all segments are there (scans of their own, all at the
// same time), the states on entry to the segments follow one after the other,
//
//   S_{s+1} = M_s S_s + N_s                                     backward  dS_{s-1} = M_s^T dS_s + dN_s
//
// a small product per segment, in float32 (three tf32 products). Then every segment is scanned from its own state.
#include "kernels/cuda/recurrence_chunk_device.cuh"

namespace qdelta::cuda {
namespace {

// A block has 16 value columns of one sequence and head. Their state lies in shared memory, transposed: a row is a
// column of S, in two parts that tf32 holds, so that it is split once and not by every warp. The warps share out the
// keys of the result. M comes in panels of its rows, the next one on its way while this one is used.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = 16;
constexpr int kStages = 2;

template <int kKeys, int kRows>
struct CombineTiles {
  static constexpr int kPanel = kRows;               // rows of M in a panel
  static constexpr int kPanels = kKeys / kPanel;     // of one M
  static constexpr int kWarpKeys = kPanel / kWarps;  // keys of the result in a panel that a warp has
  static constexpr int kAccumulators = kPanels * kWarpKeys / 8;
  using Panel = Tile<float, kPanel, kKeys>;
  using State = Tile<float, kColumns, kKeys>;
  State high, low;
  unsigned char* panels;
  static constexpr int kStateBytes = State::kElements * 4;
  static constexpr int kPanelBytes = Panel::kElements * 4;
  static constexpr int kBytes = 2 * kStateBytes + kStages * kPanelBytes;

  __device__ explicit CombineTiles(unsigned char* memory) : panels(memory + 2 * kStateBytes) {
    high.data = reinterpret_cast<float*>(memory);
    low.data = high.data + State::kElements;
  }
  __device__ Panel panel(int index) const { return {reinterpret_cast<float*>(panels + index % kStages * kPanelBytes)}; }

  __device__ void set_state(int column, int key, float value) const {
    std::uint32_t upper, lower;
    split_tf32(value, upper, lower);
    *high.at(column, key) = __uint_as_float(upper);
    *low.at(column, key) = __uint_as_float(lower);
  }
};

// Where the block is: which columns of which head, and its part of the arrays of states.
struct CombineCoord {
  std::int64_t sequence;
  int head, column;

  __device__ explicit CombineCoord(const Dims& dims) {
    const int blocks = (dims.value_dim + kColumns - 1) / kColumns;
    column = static_cast<int>(blockIdx.x % blocks) * kColumns;
    head = static_cast<int>(blockIdx.x / blocks % dims.value_heads);
    sequence = blockIdx.x / blocks / dims.value_heads;
  }
};

// What a warp has of the result: all columns of the block, and of every panel's keys kWarpKeys.
template <int kKeys, int kRows>
struct WarpPart {
  using Tiles = CombineTiles<kKeys, kRows>;
  Lane lane;
  int keys = static_cast<int>(threadIdx.x) / 32 * Tiles::kWarpKeys;  // the first in a panel

  // The first key of accumulator n; column and key of its element e.
  [[nodiscard]] __device__ int first_key(int n) const {
    constexpr int kPerPanel = Tiles::kWarpKeys / 8;
    return n / kPerPanel * Tiles::kPanel + keys + n % kPerPanel * 8;
  }
  [[nodiscard]] __device__ int column(int e) const { return lane.row(e / 2); }
  [[nodiscard]] __device__ int key(int n, int e) const { return first_key(n) + lane.pair(0) + e % 2; }
};

// Starts the copy of panel `index`: the panels of all segments in the order they are used.
template <int kKeys, int kRows>
__device__ void load_panel(const CombineSegmentsArgs& a, const CombineTiles<kKeys, kRows>& tiles, std::int64_t begin,
                           std::int64_t maps, int index, int head) {
  using Tiles = CombineTiles<kKeys, kRows>;
  const std::int64_t map = index / Tiles::kPanels;
  if (map < maps) {
    const std::int64_t segment = a.backward ? begin + maps - map : begin + map;
    const int keys = a.dims.key_dim;
    const int row = index % Tiles::kPanels * Tiles::kPanel;
    const float* M = a.M + (segment * a.dims.value_heads + head) * keys * keys;
    const MatrixIn from{reinterpret_cast<const std::byte*>(M + std::int64_t{row} * keys), keys, false, keys % 4 == 0};
    load_tile<kThreads>(tiles.panel(index), from, keys - row, keys);
  }
  cp_async_commit();
}

// B[k][n] = tile[row + n][column + k], or with `transposed` tile[row + k][column + n]; 16 x 8 elements.
template <int kRows, int kWidth>
__device__ inline FragmentB<float> load_b8(const Tile<float, kRows, kWidth>& tile, bool transposed, int row, int column,
                                           const Lane& lane) {
  FragmentB<float> b;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const int k = lane.pair(s);
    if (transposed) {
      b.x[s][0] = *tile.at(row + k, column + lane.row(0)), b.x[s][1] = *tile.at(row + k + 1, column + lane.row(0));
    } else {
      const float2 pair = pair_at(tile, row + lane.row(0), column + k);
      b.x[s][0] = pair.x, b.x[s][1] = pair.y;
    }
  }
  return b;
}
// acc += (high + low) b, in three tf32 products.
__device__ inline void mma_split(Accumulator& acc, const FragmentA<float>& high, const FragmentA<float>& low,
                                 const FragmentB<float>& b) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    std::uint32_t a_high[4], a_low[4], b_high[2], b_low[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) a_high[i] = __float_as_uint(high.x[s][i]), a_low[i] = __float_as_uint(low.x[s][i]);
#pragma unroll
    for (int i = 0; i < 2; ++i) split_tf32(b.x[s][i], b_high[i], b_low[i]);
    mma_tf32(acc.x, a_low, b_high);
    mma_tf32(acc.x, a_high, b_low);
    mma_tf32(acc.x, a_high, b_high);
  }
}

// Adds what panel p of M's rows gives: forward the keys k' of the result that the panel has, S_out[k'] = sum over k of
// M[k'][k] S[k]; backward its part of all of them, dS_in[k] += sum over the panel's k' of M[k'][k] dS[k'].
// Even and odd steps have accumulators of their own, so that fewer products wait for each other.
template <int kKeys, int kRows>
__device__ inline void add_panel(Accumulator (&sums)[2][CombineTiles<kKeys, kRows>::kAccumulators], int p,
                                 const CombineTiles<kKeys, kRows>& tiles, int index, bool backward,
                                 const WarpPart<kKeys, kRows>& warp) {
  using Tiles = CombineTiles<kKeys, kRows>;
  constexpr int kPerPanel = Tiles::kAccumulators / Tiles::kPanels;
  const typename Tiles::Panel panel = tiles.panel(index);
  const int steps = (backward ? Tiles::kPanel : kKeys) / 16;
#pragma unroll 4
  for (int step = 0; step < steps; ++step) {
    const int inner = (backward ? p * Tiles::kPanel : 0) + 16 * step;
    const FragmentA<float> high = load_a(tiles.high, 0, inner, warp.lane);
    const FragmentA<float> low = load_a(tiles.low, 0, inner, warp.lane);
    Accumulator(&acc)[Tiles::kAccumulators] = sums[step % 2];
    if (backward) {
#pragma unroll
      for (int n = 0; n < Tiles::kAccumulators; ++n)
        mma_split(acc[n], high, low, load_b8(panel, true, 16 * step, warp.first_key(n), warp.lane));
    } else {
#pragma unroll
      for (int n = 0; n < kPerPanel; ++n) {
        const FragmentB<float> b = load_b8(panel, false, warp.keys + 8 * n, inner, warp.lane);
        mma_split(acc[p * kPerPanel + n], high, low, b);
      }
    }
  }
}

template <int kKeys, int kRows>
__global__ void __launch_bounds__(kThreads) combine_segments_kernel(const CombineSegmentsArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Tiles = CombineTiles<kKeys, kRows>;
  const Tiles tiles(memory);
  const CombineCoord place(a.dims);
  const WarpPart<kKeys, kRows> warp;
  const std::int64_t* const table = a.segments.first_segment;
  const std::int64_t begin = table != nullptr ? table[place.sequence] : place.sequence * a.segments.per_sequence;
  const std::int64_t end = table != nullptr ? table[place.sequence + 1] : begin + a.segments.per_sequence;
  const std::int64_t maps = end - begin - 1;  // the last segment's is not needed, or backward the first one's

  const int keys = a.dims.key_dim;
  const int values = a.dims.value_dim;
  const auto state_at = [&](auto* states, std::int64_t segment) {
    return states + (segment * a.dims.value_heads + place.head) * keys * values + place.column;
  };
  Accumulator sums[Tiles::kAccumulators];
  load_panel(a, tiles, begin, maps, 0, place.head);
#pragma unroll
  for (int n = 0; n < Tiles::kAccumulators; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool valid = a.start.data != nullptr && warp.key(n, e) < keys && place.column + warp.column(e) < values;
      sums[n].x[e] =
          valid ? state_matrix(a.start, place.sequence, place.head, 0, place.column).get(warp.key(n, e), warp.column(e))
                : 0.0F;
    }
  }
  for (std::int64_t map = 0; map <= maps; ++map) {
    // This segment's state is known: to memory, and as an operand for the next one's.
    const std::int64_t segment = a.backward ? end - 1 - map : begin + map;
    float* to = state_at(a.states, segment);
    const float* N = state_at(a.N, segment);
    Accumulator of_n[Tiles::kAccumulators];
    Accumulator products[2][Tiles::kAccumulators];
#pragma unroll
    for (int n = 0; n < Tiles::kAccumulators; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = warp.key(n, e);
        const int column = warp.column(e);
        tiles.set_state(column, key, sums[n].x[e]);
        const bool valid = key < keys && place.column + column < values;
        const std::int64_t offset = std::int64_t{key} * values + column;
        if (valid) to[offset] = sums[n].x[e];
        of_n[n].x[e] = load_element<float>(N + offset, valid && map < maps);
      }
    }
    if (map == maps) break;
    const bool starts_from_zero = map == 0 && a.start.data == nullptr;  // its M may not be there
#pragma unroll
    for (int p = 0; p < Tiles::kPanels; ++p) {
      const int index = static_cast<int>(map) * Tiles::kPanels + p;
      cp_async_wait<0>();
      __syncthreads();  // also: the state is there, and the panel before is used up
      load_panel(a, tiles, begin, maps, index + 1, place.head);
      if (!starts_from_zero) add_panel<kKeys, kRows>(products, p, tiles, index, a.backward, warp);
    }
#pragma unroll
    for (int n = 0; n < Tiles::kAccumulators; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[n].x[e] = (products[0][n].x[e] + products[1][n].x[e]) + of_n[n].x[e];
    }
    __syncthreads();  // the state is used up
  }
}

template <int kKeys, int kRows>
void launch(const Context& context, const CombineSegmentsArgs& args) {
  constexpr int kMemory = CombineTiles<kKeys, kRows>::kBytes;
  allow_shared_memory(context, reinterpret_cast<const void*>(combine_segments_kernel<kKeys, kRows>), kMemory);
  const std::int64_t blocks =
      args.sequences * args.dims.value_heads * ((args.dims.value_dim + kColumns - 1) / kColumns);
  combine_segments_kernel<kKeys, kRows><<<static_cast<unsigned>(blocks), kThreads, kMemory, context.stream()>>>(args);
  check_launch("recurrence combine");
}

}  // namespace

void launch_combine_segments(const Context& context, const CombineSegmentsArgs& args) {
  switch (padded_key_dim(args.dims.key_dim)) {
    case 64:
      return launch<64, 64>(context, args);
    case 128:  // small panels where shared memory is, too; the sums are the same
      return CombineTiles<128, 128>::kBytes <= context.shared_memory() ? launch<128, 128>(context, args)
                                                                       : launch<128, 64>(context, args);
    default:
      return launch<kMaxKeyDim, 64>(context, args);
  }
}

}  // namespace qdelta::cuda
