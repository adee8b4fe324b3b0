// How the tiles of a scan (recurrence_chunk_scan.cuh) come to shared memory, by its threads or by the copy engine, and
// the launches of both kinds.
//
//   Copies copies(...);          the first chunk is on its way
//   for each chunk:
//     copies.start(chunk);       what must be on its way now
//     tiles = copies.wait(chunk);
//     ...
//     copies.release();          the tiles of this chunk are used up
//   copies.finish();
#pragma once

#include <limits>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/recurrence_chunk_scan.cuh"
#include "kernels/cuda/tensor_copy.cuh"

namespace qdelta::cuda::scan {

// What the copy engine must know of the inputs; unused where threads copy.
struct ScanMaps {
  TensorMap q, k, values, T, A_qk;  // values: V, or dO
};

// What a block of threads copies: the chunks from `first` on, `step` apart (1 or -1), up to `last`.
struct ScanCopyArgs {
  const Dims& dims;
  const Chunks& chunks;
  const TokensIn &q, &k, &values;
  const PreparedChunks& prepared;
  bool erases, has_output;  // T and A_qk are needed
  std::int64_t sequence;
  int head, block_column;
  int columns;  // of the values, from block_column on; the others are zero
  std::int64_t first, last;
  int step;

  [[nodiscard]] __device__ bool has(std::int64_t chunk) const { return step > 0 ? chunk <= last : chunk >= last; }
  [[nodiscard]] __device__ ChunkRange range(std::int64_t chunk) const { return chunk_range(chunks, chunk, sequence); }
};

// Points at the inputs of one chunk in global memory. Tokens and chunks of a sequence are contiguous, so that moving to
// the next chunk is an addition.
template <class E>
struct ScanTileIterator {
  MatrixIn q, k, values;  // V, or dO
  const E* T;
  const E* A_qk;
  const float* factors;
  int value_heads;

  __device__ ScanTileIterator(const Dims& dims, const TokensIn& q_in, const TokensIn& k_in, const TokensIn& values_in,
                              const PreparedChunks& prepared, std::int64_t chunk, const ChunkRange& range, int head,
                              int column)
      : q(chunk_rows(q_in, range, head / dims.group_size)),
        k(chunk_rows(k_in, range, head / dims.group_size)),
        values(chunk_rows(values_in, range, head, column)),
        value_heads(dims.value_heads) {
    const std::int64_t slot = chunk * dims.value_heads + head;
    T = static_cast<const E*>(prepared.T) + slot * kMatrices;
    A_qk = static_cast<const E*>(prepared.A_qk) + slot * kMatrices;
    factors = prepared.factors + slot * (kFactors * kChunk);
  }
  // chunks is 1 or -1.
  __device__ void advance(int chunks) {
    q.advance_rows(chunks * kChunk);
    k.advance_rows(chunks * kChunk);
    values.advance_rows(chunks * kChunk);
    const int slots = chunks * value_heads;
    T += static_cast<std::int64_t>(slots) * kMatrices;
    A_qk += static_cast<std::int64_t>(slots) * kMatrices;
    factors += static_cast<std::int64_t>(slots) * (kFactors * kChunk);
  }
  static constexpr int kMatrices = operand_parts(kIsBf16<E>) * static_cast<int>(kChunkMatrix);
};

// By cp.async of all threads. With two stages the next chunk is copied while this one is computed.
template <class E, int kKeyDim, int kStageCount>
class ThreadCopies {
 public:
  static constexpr int kStages = kStageCount;
  static constexpr bool kByEngine = false;
  using Tiles = ScanTiles<E, kKeyDim>;

  __device__ ThreadCopies(const ScanCopyArgs& args, const ScanMaps& /*maps*/, unsigned char* memory)
      : a(args), memory_(memory), next_(inputs_of(a.first)) {
    load(a.first);
  }
  __device__ void start(std::int64_t chunk) {
    if (kStages == 2) load(chunk + a.step);
    if (kStages == 1 && chunk != a.first) load(chunk);
  }
  // kInFlight: copies that were started after this chunk's.
  template <int kInFlight = kStages - 1>
  __device__ Tiles wait(std::int64_t chunk) const {
    cp_async_wait<kInFlight>();
    fence_async_proxy();
    __syncthreads();
    return stage(chunk);
  }
  __device__ void release() const { __syncthreads(); }
  __device__ void finish() const {}

 private:
  [[nodiscard]] __device__ ScanTileIterator<E> inputs_of(std::int64_t chunk) const {
    return {a.dims, a.q, a.k, a.values, a.prepared, chunk, a.range(chunk), a.head, a.block_column};
  }
  [[nodiscard]] __device__ Tiles stage(std::int64_t chunk) const {
    return Tiles(memory_ + static_cast<int>(chunk % kStages) * Tiles::kStageBytes);
  }
  __device__ void load(std::int64_t chunk) {
    if (a.has(chunk)) {
      if (kStages == 1) next_ = inputs_of(chunk);  // recomputed, to save registers
      copy_chunk(stage(chunk), a.range(chunk).tokens);
      if (kStages == 2) next_.advance(a.step);
    }
    cp_async_commit();
  }
  __device__ void copy_chunk(const Tiles& tiles, int rows) const {
    load_tile<kThreads>(tiles.q, next_.q, rows, a.dims.key_dim);
    load_tile<kThreads>(tiles.k, next_.k, rows, a.dims.key_dim);
    load_tile<kThreads>(tiles.values, next_.values, rows, a.columns);
    for (int part = 0; part < Tiles::kParts; ++part) {
      load_workspace_tile<kThreads, true>(tiles.A_qk[part], next_.A_qk + part * kChunkMatrix, kChunk);
      if (a.erases) load_workspace_tile<kThreads, true>(tiles.T[part], next_.T + part * kChunkMatrix, kChunk);
    }
    static_assert(kScanFactors * kChunk <= 4 * kThreads);
    const int i = 4 * static_cast<int>(threadIdx.x);
    if (i < kScanFactors * kChunk) cp_async(tiles.factors + i, next_.factors + i, true);
  }

  const ScanCopyArgs& a;
  unsigned char* memory_;
  ScanTileIterator<E> next_;
};

// By the copy engine, in bf16. The column blocks of a head are a cluster: they need the same q, k, T and A_qk, of which
// each block copies some to all. One stage: other clusters on the SM compute meanwhile, and the next chunk is brought
// into L2.
template <int kKeyDim>
class ClusterCopies {
 public:
  static constexpr int kStages = 1;
  static constexpr bool kByEngine = true;
  using Tiles = ScanTiles<bf16, kKeyDim>;
  struct Barriers {
    CopyBarrier rows, rest;  // q, k and the factors; the others
  };

  __device__ ClusterCopies(const ScanCopyArgs& args, const ScanMaps& tensor_maps, unsigned char* memory)
      : a(args), maps(tensor_maps), tiles_(memory), there_(*reinterpret_cast<Barriers*>(memory + Tiles::kBytes)) {
    if (threadIdx.x == 0) {
      there_.rows.init();
      there_.rest.init();
    }
    if (a.columns <= 0) clear_rows(tiles_.values, 0);
    fence_async_proxy();
    cluster_barrier();
    if (a.has(a.first)) copy_chunk(a.first);
  }
  __device__ void start(std::int64_t chunk) {
    if (chunk == a.first) return;
    cluster_wait();  // for all blocks that the copies go to
    copy_chunk(chunk);
  }
  template <int kInFlight = 0>
  __device__ Tiles wait(std::int64_t chunk) {
    there_.rows.wait(phase_);
    there_.rest.wait(phase_);
    phase_ ^= 1;
    // Behind the end of a packed sequence are the tokens of the next one, where there should be zeros.
    if (a.chunks.cu_seqlens != nullptr && chunk == (a.step > 0 ? a.last : a.first)) {
      const int tokens = a.range(chunk).tokens;
      clear_rows(tiles_.q, tokens);
      clear_rows(tiles_.k, tokens);
      clear_rows(tiles_.values, tokens);
      fence_async_proxy();
      __syncthreads();
    }
    return tiles_;
  }
  __device__ void release() const {
    fence_async_proxy();
    cluster_arrive();
  }
  __device__ void finish() const {
    if (a.has(a.first)) cluster_wait();
  }

 private:
  static constexpr int kParts = 2;
  static constexpr int kPanels = kKeyDim / kBlockV;
  static constexpr int kPanelElements = kChunk * kBlockV;
  static constexpr int kPanelBytes = kPanelElements * static_cast<int>(sizeof(bf16));
  static constexpr int kFactorBytes = kScanFactors * kChunk * static_cast<int>(sizeof(float));

  template <int kWidth>
  static __device__ void clear_rows(const Tile<bf16, kChunk, kWidth>& tile, int from) {
    constexpr int kVector = Tile<bf16, kChunk, kWidth>::kVector;
    constexpr int kVectorsPerRow = Tile<bf16, kChunk, kWidth>::kVectorsPerRow;
    for (int i = from * kVectorsPerRow + static_cast<int>(threadIdx.x); i < kChunk * kVectorsPerRow; i += kThreads)
      *reinterpret_cast<uint4*>(tile.at(i / kVectorsPerRow, i % kVectorsPerRow * kVector)) = uint4{};
  }
  [[nodiscard]] __device__ BoxOrigin tokens_at(std::int64_t chunk, int head, int column) const {
    const ChunkRange range = a.range(chunk);
    return {column, static_cast<int>(range.first), head, static_cast<int>(range.batch)};
  }
  [[nodiscard]] __device__ std::int64_t slot_of(std::int64_t chunk) const {
    return chunk * a.dims.value_heads + a.head;
  }

  __device__ __forceinline__ void copy_chunk(std::int64_t chunk) const {
    if (threadIdx.x != 0) return;
    const int blocks = cluster_size();
    const int rank = cluster_rank();
    const bool has_values = a.columns > 0;
    there_.rows.expect(2 * kPanels * kPanelBytes + kFactorBytes);
    there_.rest.expect(((a.erases ? kParts : 0) + (a.has_output ? kParts : 0) + (has_values ? 1 : 0)) * kPanelBytes);
    copy_bytes(tiles_.factors, a.prepared.factors + slot_of(chunk) * (kFactors * kChunk), kFactorBytes, there_.rows);
    const BoxOrigin rows = tokens_at(chunk, a.head / a.dims.group_size, 0);
    const BoxOrigin parts{0, static_cast<int>(slot_of(chunk)) * kParts * kChunk, 0, 0};
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const BoxOrigin at{panel * kBlockV, rows.row, rows.head, rows.index};
      if (2 * panel % blocks == rank)
        copy_box_to_cluster(tiles_.q.data + panel * kPanelElements, maps.q, at, there_.rows, blocks);
      if ((2 * panel + 1) % blocks == rank)
        copy_box_to_cluster(tiles_.k.data + panel * kPanelElements, maps.k, at, there_.rows, blocks);
    }
    const BoxOrigin values{a.block_column, rows.row, a.head, rows.index};
    if (has_values) copy_box(tiles_.values.data, maps.values, values, there_.rest);
    if (a.erases && 2 * kPanels % blocks == rank)
      copy_box_to_cluster(tiles_.T[0].data, maps.T, parts, there_.rest, blocks);
    if (a.has_output && (2 * kPanels + 1) % blocks == rank)
      copy_box_to_cluster(tiles_.A_qk[0].data, maps.A_qk, parts, there_.rest, blocks);
    if (a.has(chunk + a.step)) prefetch_chunk(chunk + a.step, blocks, rank);
  }
  __device__ __forceinline__ void prefetch_chunk(std::int64_t chunk, int blocks, int rank) const {
    const BoxOrigin rows = tokens_at(chunk, a.head / a.dims.group_size, 0);
    const BoxOrigin parts{0, static_cast<int>(slot_of(chunk)) * kParts * kChunk, 0, 0};
    if (a.columns > 0) prefetch_box(maps.values, {a.block_column, rows.row, a.head, rows.index});
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const BoxOrigin at{panel * kBlockV, rows.row, rows.head, rows.index};
      if (2 * panel % blocks == rank) prefetch_box(maps.q, at);
      if ((2 * panel + 1) % blocks == rank) prefetch_box(maps.k, at);
    }
    if (a.erases && 2 * kPanels % blocks == rank) prefetch_box(maps.T, parts);
    if (a.has_output && (2 * kPanels + 1) % blocks == rank) prefetch_box(maps.A_qk, parts);
  }

  const ScanCopyArgs& a;
  const ScanMaps& maps;
  Tiles tiles_;
  Barriers& there_;
  int phase_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------------
// Launches. A Scan has
//   Args                        its arguments
//   kernel<E, keys, Copies>(args)
//   scans_per_head(args)        sequences, or chunks
//   values(args)                V, or dO
//   cluster_divides(args)       a number that the blocks of a cluster must divide
//   allows_two_stages(args)     false where the arguments ask for something that only one stage has registers for

template <class Scan, class E, int kKeyDim, class Copies>
void launch_copies(const Context& context, const typename Scan::Args& args, const ScanMaps& maps, std::int64_t blocks,
                   int memory, int cluster) {
  const auto kernel = Scan::template kernel<E, kKeyDim, Copies>(args);
  allow_shared_memory(context, reinterpret_cast<const void*>(kernel), memory);
  cudaLaunchAttribute clusters{};
  clusters.id = cudaLaunchAttributeClusterDimension;
  clusters.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(memory);
  config.stream = context.stream();
  config.attrs = &clusters;
  config.numAttrs = Copies::kByEngine ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, args, maps), "recurrence scan");
}

template <class Scan>
bool fits_copy_engine(const Context& context, const typename Scan::Args& a) {
  const auto fits = [](const TokensIn& tokens) { return tokens.bf16 && tokens.aligned16; };
  const std::int64_t rows = a.chunks.total * a.dims.value_heads * operand_parts(true) * kChunk;
  return rows <= std::numeric_limits<std::int32_t>::max() && has_tensor_copies(context) && fits(a.q) && fits(a.k) &&
         fits(Scan::values(a));
}
template <class Scan>
ScanMaps tensor_maps(const typename Scan::Args& a) {
  const std::int64_t batch = a.chunks.cu_seqlens != nullptr ? 1 : a.chunks.sequences;
  const TensorExtents keys{a.dims.key_dim, a.chunks.tokens, a.dims.heads, batch};
  const TensorExtents values{a.dims.value_dim, a.chunks.tokens, a.dims.value_heads, batch};
  constexpr int kBoth = operand_parts(true) * kChunk;  // rows of both parts of an operand
  const std::int64_t rows = a.chunks.total * a.dims.value_heads * kBoth;
  ScanMaps maps{.q = tensor_map(a.q, keys, kChunk),
                .k = tensor_map(a.k, keys, kChunk),
                .values = tensor_map(Scan::values(a), values, kChunk),
                .T = {},
                .A_qk = tensor_map(a.prepared.A_qk, rows, kChunk, kBoth)};
  if (a.erases) maps.T = tensor_map(a.prepared.T, rows, kChunk, kBoth);
  return maps;
}

template <class Scan, class E, int kKeyDim>
void launch_key_dim(const Context& context, const typename Scan::Args& args) {
  using Tiles = ScanTiles<E, kKeyDim>;
  const std::int64_t blocks = Scan::scans_per_head(args) * args.dims.value_heads * args.dims.column_blocks;
  if (blocks == 0) return;
  if constexpr (kIsBf16<E>) {
    constexpr int kMemory = 2 * Tiles::kStageBytes;
    if (blocks <= context.sm_count() && context.shared_memory() >= kMemory && Scan::allows_two_stages(args))
      return launch_copies<Scan, E, kKeyDim, ThreadCopies<E, kKeyDim, 2>>(context, args, {}, blocks, kMemory, 1);
    if (fits_copy_engine<Scan>(context, args)) {
      using Copies = ClusterCopies<kKeyDim>;
      int cluster = 4;
      while (Scan::cluster_divides(args) % cluster != 0) --cluster;
      return launch_copies<Scan, E, kKeyDim, Copies>(context, args, tensor_maps<Scan>(args), blocks,
                                                     Tiles::kBytes + int{sizeof(typename Copies::Barriers)}, cluster);
    }
  }
  launch_copies<Scan, E, kKeyDim, ThreadCopies<E, kKeyDim, 1>>(context, args, {}, blocks, Tiles::kBytes, 1);
}

template <class Scan, class E>
void launch(const Context& context, const typename Scan::Args& args) {
  switch (padded_key_dim(args.dims.key_dim)) {
    case 64:
      return launch_key_dim<Scan, E, 64>(context, args);
    case 128:
      return launch_key_dim<Scan, E, 128>(context, args);
    default:
      return launch_key_dim<Scan, E, kMaxKeyDim>(context, args);
  }
}

}  // namespace qdelta::cuda::scan
