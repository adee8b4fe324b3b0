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

// A block has 32 value columns of one sequence and head. Their state lies in shared memory, transposed: a row is a
// column of S. Two groups of four warps have 16 columns each; the warps of a group share out the keys of the result.
constexpr int kThreads = 256;
constexpr int kColumns = 32;
constexpr int kPanel = 64;  // rows of M in a stage
constexpr int kStages = 3;

template <int kKeys>
struct CombineTiles {
  using Panel = Tile<float, kPanel, kKeys>;
  Tile<float, kColumns, kKeys> state;
  unsigned char* panels;
  static constexpr int kStateBytes = kColumns * kKeys * 4;
  static constexpr int kPanelBytes = kPanel * kKeys * 4;
  static constexpr int kBytes = kStateBytes + kStages * kPanelBytes;

  __device__ explicit CombineTiles(unsigned char* memory) : panels(memory + kStateBytes) {
    state.data = reinterpret_cast<float*>(memory);
  }
  __device__ Panel panel(int index) const { return {reinterpret_cast<float*>(panels + index % kStages * kPanelBytes)}; }
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

// What a warp has of the result: 16 columns, and of every panel's 64 keys 16. Accumulators 2 p and 2 p + 1 are of panel
// p.
struct WarpPart {
  Lane lane;
  int rows, keys;  // the first of its columns; the first of its keys in a panel

  __device__ WarpPart()
      : rows(static_cast<int>(threadIdx.x) / 128 * 16), keys(static_cast<int>(threadIdx.x) / 32 % 4 * 16) {}
  // Column and key of element e of sum n.
  [[nodiscard]] __device__ int column(int e) const { return rows + lane.group + e / 2 * 8; }
  [[nodiscard]] __device__ int key(int n, int e) const {
    return n / 2 * kPanel + keys + n % 2 * 8 + 2 * lane.quad + e % 2;
  }
};

// Starts the copy of panel `index`: the panels of all segments in the order they are used.
template <int kKeys>
__device__ void load_panel(const CombineSegmentsArgs& a, const CombineTiles<kKeys>& tiles, std::int64_t begin,
                           std::int64_t maps, int index, int head) {
  constexpr int kPanels = kKeys / kPanel;
  const std::int64_t map = index / kPanels;
  if (map < maps) {
    const std::int64_t segment = a.backward ? begin + maps - map : begin + map;
    const int keys = a.dims.key_dim;
    const int row = index % kPanels * kPanel;
    const float* M = a.M + (segment * a.dims.value_heads + head) * keys * keys;
    const MatrixIn from{reinterpret_cast<const std::byte*>(M + std::int64_t{row} * keys), keys, false, keys % 4 == 0};
    load_tile<kThreads>(tiles.panel(index), from, keys - row, keys);
  }
  cp_async_commit();
}

// Adds what a panel of M's rows gives: forward the keys k' of the result that the panel has, S_out[k'] = sum over k of
// M[k'][k] S[k]; backward its part of all of them, dS_in[k] += sum over the panel's k' of M[k'][k] dS[k'].
// Even and odd steps have accumulators of their own, so that fewer products wait for each other.
template <int kKeys>
__device__ inline void add_panel(Accumulator (&sums)[2][kKeys / 32], int p, const CombineTiles<kKeys>& tiles,
                                 const typename CombineTiles<kKeys>::Panel& panel, bool backward,
                                 const WarpPart& warp) {
  const Lane& lane = warp.lane;
  if (backward) {
#pragma unroll
    for (int inner = 0; inner < kPanel; inner += 16) {
      const FragmentA<float> left = load_a(tiles.state, warp.rows, p * kPanel + inner, lane);
#pragma unroll
      for (int n = 0; n < kKeys / 32; n += 2) {
        const int key = n / 2 * kPanel + warp.keys;
        Accumulator(&acc)[kKeys / 32] = sums[inner / 16 % 2];
        mma(acc[n], acc[n + 1], left, load_b_transposed(panel, inner, key, lane));
      }
    }
  } else {
#pragma unroll 4
    for (int inner = 0; inner < kKeys; inner += 16) {
      const FragmentA<float> left = load_a(tiles.state, warp.rows, inner, lane);
      Accumulator(&acc)[kKeys / 32] = sums[inner / 16 % 2];
      mma(acc[2 * p], acc[2 * p + 1], left, load_b(panel, warp.keys, inner, lane));
    }
  }
}

template <int kKeys>
__global__ void __launch_bounds__(kThreads) combine_segments_kernel(const CombineSegmentsArgs a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const CombineTiles<kKeys> tiles(memory);
  const CombineCoord place(a.dims);
  const WarpPart warp;
  constexpr int kPanels = kKeys / kPanel;
  const bool packed = a.segments.first_segment != nullptr;
  const std::int64_t begin =
      packed ? a.segments.first_segment[place.sequence] : place.sequence * a.segments.per_sequence;
  const std::int64_t end = packed ? a.segments.first_segment[place.sequence + 1] : begin + a.segments.per_sequence;
  const std::int64_t maps = end - begin - 1;  // the last segment's is not needed, or backward the first one's

  const int keys = a.dims.key_dim;
  const int values = a.dims.value_dim;
  const auto state_at = [&](auto* states, std::int64_t segment) {
    return states + (segment * a.dims.value_heads + place.head) * keys * values + place.column;
  };
  Accumulator sums[kKeys / 32];
#pragma unroll
  for (int n = 0; n < kKeys / 32; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool valid = a.start.data != nullptr && warp.key(n, e) < keys && place.column + warp.column(e) < values;
      sums[n].x[e] =
          valid ? state_matrix(a.start, place.sequence, place.head, 0, place.column).get(warp.key(n, e), warp.column(e))
                : 0.0F;
    }
  }
  for (int i = 0; i < kStages - 1; ++i) load_panel(a, tiles, begin, maps, i, place.head);
  for (std::int64_t map = 0; map <= maps; ++map) {
    // This segment's state is known: to memory, and as an operand for the next one's.
    const std::int64_t segment = a.backward ? end - 1 - map : begin + map;
    float* to = state_at(a.states, segment);
    const float* N = state_at(a.N, segment);
    Accumulator of_n[kKeys / 32];
    Accumulator products[2][kKeys / 32];
#pragma unroll
    for (int n = 0; n < kKeys / 32; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = warp.key(n, e);
        const int column = warp.column(e);
        *tiles.state.at(column, key) = sums[n].x[e];
        const bool valid = key < keys && place.column + column < values;
        const std::int64_t offset = std::int64_t{key} * values + column;
        if (valid) to[offset] = sums[n].x[e];
        of_n[n].x[e] = load_element<float>(N + offset, valid && map < maps);
      }
    }
    if (map == maps) break;
    const bool starts_from_zero = map == 0 && a.start.data == nullptr;  // its M may not be there
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      const int panel = static_cast<int>(map) * kPanels + p;
      cp_async_wait<kStages - 2>();
      __syncthreads();  // also: the state is there, and the panel before is used up
      load_panel(a, tiles, begin, maps, panel + kStages - 1, place.head);
      if (!starts_from_zero) add_panel<kKeys>(products, p, tiles, tiles.panel(panel), a.backward, warp);
    }
#pragma unroll
    for (int n = 0; n < kKeys / 32; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[n].x[e] = (products[0][n].x[e] + products[1][n].x[e]) + of_n[n].x[e];
    }
    __syncthreads();  // the state is used up
  }
}

template <int kKeys>
void launch(const Context& context, const CombineSegmentsArgs& args) {
  constexpr int kMemory = CombineTiles<kKeys>::kBytes;
  allow_shared_memory(context, reinterpret_cast<const void*>(combine_segments_kernel<kKeys>), kMemory);
  const std::int64_t blocks =
      args.sequences * args.dims.value_heads * ((args.dims.value_dim + kColumns - 1) / kColumns);
  combine_segments_kernel<kKeys><<<static_cast<unsigned>(blocks), kThreads, kMemory, context.stream()>>>(args);
  check_launch("recurrence combine");
}

}  // namespace

void launch_combine_segments(const Context& context, const CombineSegmentsArgs& args) {
  switch (padded_key_dim(args.dims.key_dim)) {
    case 64:
      return launch<64>(context, args);
    case 128:
      return launch<128>(context, args);
    default:
      return launch<kMaxKeyDim>(context, args);
  }
}

}  // namespace qdelta::cuda
