// How the scans of recurrence_chunk_scan.cuh get their tiles: which block has what, the tiles of a chunk in shared
// memory, and two pipelines that bring them.
//
// A consumer, a warpgroup with kBlockV value columns, walks through the chunks of its segment:
//
//   keys = acquire_keys(chunk), matrices = acquire_matrices(), ..., release_matrices(), release_keys()
//
// Q and K are needed until the state is updated, the matrices no longer than until O is computed.
#pragma once

#include "kernels/cuda/recurrence_chunk_device.cuh"
#include "kernels/cuda/tensor_copy.cuh"

namespace qdelta::cuda::scan {

inline constexpr int kWarpgroupThreads = 32 * kWarpTiles;

template <class E, int kKeyDim>
struct KeyTiles {
  using Rows = Tile<E, kChunk, kKeyDim>;
  Rows q, k;
  static constexpr int kBytes = 2 * Rows::kElements * static_cast<int>(sizeof(E));

  __device__ explicit KeyTiles(unsigned char* memory) {
    q.data = reinterpret_cast<E*>(memory);
    k.data = q.data + Rows::kElements;
  }
};

// The values, V or dO, of the warpgroup that asks.
template <class E, int kWarpgroups>
struct MatrixTiles {
  static constexpr int kParts = operand_parts(kIsBf16<E>);
  using Rows = Tile<E, kChunk, kBlockV>;
  using Matrix = Tile<E, kChunk, kChunk>;
  Matrix T[kParts], A_qkT[kParts];
  Rows values;
  const float* factors;  // [kScanFactors][kChunk]
  static constexpr int kMatrixBytes = kParts * Matrix::kElements * static_cast<int>(sizeof(E));  // of all parts
  static constexpr int kRowBytes = Rows::kElements * static_cast<int>(sizeof(E));
  static constexpr int kFactorBytes = kScanFactors * kChunk * static_cast<int>(sizeof(float));
  static constexpr int kBytes = 2 * kMatrixBytes + kWarpgroups * kRowBytes + (kFactorBytes + 1023) / 1024 * 1024;

  __device__ explicit MatrixTiles(unsigned char* memory, int warpgroup) {
    E* next = reinterpret_cast<E*>(memory);
    for (auto* matrix : {T, A_qkT}) {
      for (int part = 0; part < kParts; ++part, next += kChunkMatrix) matrix[part].data = next;
    }
    values.data = next + warpgroup * Rows::kElements;
    factors = reinterpret_cast<const float*>(next + kWarpgroups * Rows::kElements);
  }
  __device__ const float* factor(Factor which) const { return factors + which * kChunk; }
  __device__ float gamma_C() const { return factor(kGamma)[kChunk - 1]; }
};

// How many blocks have the columns of a head.
[[nodiscard]] QDELTA_HOST_DEVICE inline int team_blocks(const Dims& dims, int warpgroups) {
  return (dims.column_blocks + warpgroups - 1) / warpgroups;
}

// A job of a scan: a segment (or a chunk, in a forward scan per chunk) and a value head; the columns of a block's
// warpgroups; and of a warp: columns from warp_column on in those of its warpgroup, which is `column` in all.
struct ScanCoord {
  int index, head, warpgroup, first_block, block_column, warp_column, column;

  __device__ ScanCoord(const Dims& dims, int warpgroups, int job) {
    index = job / dims.value_heads;
    head = job - index * dims.value_heads;
    warpgroup = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
    first_block = static_cast<int>(blockIdx.x) % team_blocks(dims, warpgroups) * warpgroups;
    block_column = (first_block + warpgroup) * kBlockV;
    warp_column = static_cast<int>(threadIdx.x) % kWarpgroupThreads / 32 * kWarpV;
    column = block_column + warp_column;
  }
};

// The chunks of a job that a block has, in the order of the scan.
struct ScanWalk {
  int sequence, first, count, step;
};

// The jobs of a block's team, from the last one to the first, and what it has of them (SharedJobs).
class TeamJobs {
 public:
  __device__ TeamJobs(const SharedJobs& shared, int team_blocks, std::int64_t job_chunks)
      : shared_(shared), team_blocks_(team_blocks), job_chunks_(static_cast<int>(job_chunks)) {
    const int team = static_cast<int>(blockIdx.x) / team_blocks;
    first = last = team;
    if (!is_shared()) return;
    begin_ = team * shared.chunks_per_team;
    end_ = min(begin_ + shared.chunks_per_team, shared.jobs * job_chunks_);
    first = begin_ / job_chunks_;
    last = (end_ - 1) / job_chunks_;
  }
  int first, last;

  // Cuts a walk through a whole job down to the team's part.
  __device__ void cut(ScanWalk& walk, int job) const {
    if (!is_shared()) return;
    const int begin = begins_inside(job) ? begin_ - job * job_chunks_ : 0;
    const int end = ends_inside(job) ? end_ - job * job_chunks_ : job_chunks_;
    walk.first += begin * walk.step;
    walk.count = end - begin;
  }
  // Whether the team ahead has the beginning, and the one behind the end.
  [[nodiscard]] __device__ bool begins_inside(int job) const { return is_shared() && job * job_chunks_ < begin_; }
  [[nodiscard]] __device__ bool ends_inside(int job) const { return is_shared() && (job + 1) * job_chunks_ > end_; }

  // A warp's part of a state goes from the team that has the beginning of a job to the one that has the end.
  template <int kAccumulators>
  __device__ void hand_on(const Accumulator (&state)[kAccumulators]) const {
    const int block = static_cast<int>(blockIdx.x);
    float4* const to = handed_state<kAccumulators>(block);
#pragma unroll
    for (int j = 0; j < kAccumulators; ++j) to[32 * j] = {state[j].x[0], state[j].x[1], state[j].x[2], state[j].x[3]};
    __syncwarp();
    if (threadIdx.x % 32 == 0) raise_flag(shared_.ready + warp_of(block));
  }
  template <int kAccumulators>
  __device__ void take_over(Accumulator (&state)[kAccumulators]) const {
    const int block = static_cast<int>(blockIdx.x) - team_blocks_;
    if (threadIdx.x % 32 == 0) wait_for_flag(shared_.ready + warp_of(block));
    __syncwarp();
    const float4* const from = handed_state<kAccumulators>(block);
#pragma unroll
    for (int j = 0; j < kAccumulators; ++j) {
      const float4 handed = from[32 * j];
      state[j].x[0] = handed.x, state[j].x[1] = handed.y, state[j].x[2] = handed.z, state[j].x[3] = handed.w;
    }
  }

 private:
  [[nodiscard]] __device__ bool is_shared() const { return shared_.chunks_per_team > 0; }
  // Of all blocks' warps the one that has this warp's place in a block.
  [[nodiscard]] static __device__ int warp_of(int block) {
    return block * (static_cast<int>(blockDim.x) / 32) + static_cast<int>(threadIdx.x) / 32;
  }
  template <int kAccumulators>
  [[nodiscard]] __device__ float4* handed_state(int block) const {
    return reinterpret_cast<float4*>(shared_.states) + warp_of(block) * (kAccumulators * 32) + threadIdx.x % 32;
  }

  const SharedJobs& shared_;
  const int team_blocks_, job_chunks_;
  int begin_ = 0, end_ = 0;
};

// What the copy engine must know of the inputs; unused where threads copy.
struct ScanMaps {
  TensorMap q, k, values;
};

// ---------------------------------------------------------------------------------------------------------------------
// Of a single warpgroup, one chunk after the other: all threads copy (cp.async), then all wait.
template <class E, int kKeyDim>
class ThreadPipeline {
 public:
  static constexpr int kWarpgroups = 1;
  static constexpr int kThreads = kWarpgroupThreads;
  static constexpr int kMinBlocksPerSm = kIsBf16<E> && kKeyDim <= 128 ? 2 : 1;
  using Keys = KeyTiles<E, kKeyDim>;
  using Matrices = MatrixTiles<E, kWarpgroups>;
  static constexpr int kBytes = Keys::kBytes + Matrices::kBytes;

  // `value_columns`: those from the warpgroup's first column on; the values beyond them are zeros.
  template <class Args>
  __device__ ThreadPipeline(const Args& a, const TokensIn& values, const ScanMaps& /*maps*/, const ScanCoord& at,
                            const ScanWalk& walk, int /*blocks*/, int value_columns, unsigned char* memory)
      : dims_(a.dims),
        chunks_(a.chunks),
        q_(a.q),
        k_(a.k),
        values_(values),
        prepared_(a.prepared),
        erases_(a.erases),
        at_(at),
        walk_(walk),
        value_columns_(value_columns),
        memory_(memory) {}
  static __device__ void prefetch(const ScanMaps& /*maps*/) {}
  // Whether this thread only brings tiles.
  static __device__ bool is_producer() { return false; }
  static __device__ void begin_producing() {}
  template <class HasValues>
  __device__ void produce(const HasValues& /*has_values*/) const {}
  static __device__ void begin_consuming() {}

  __device__ Keys acquire_keys(int chunk) const {
    const Keys keys(memory_);
    const Matrices matrices(memory_ + Keys::kBytes, 0);
    const ChunkRange range = chunk_range(chunks_, chunk, walk_.sequence);
    const int q_head = at_.head / dims_.group_size;
    load_tile<kThreads>(keys.q, chunk_rows(q_, range, q_head), range.tokens, dims_.key_dim);
    load_tile<kThreads>(keys.k, chunk_rows(k_, range, q_head), range.tokens, dims_.key_dim);
    load_tile<kThreads>(matrices.values, chunk_rows(values_, range, at_.head, at_.block_column), range.tokens,
                        value_columns_);
    const std::int64_t slot = std::int64_t{chunk} * dims_.value_heads + at_.head;
    const auto load = [&](void* to, const void* all, int bytes, int stride) {
      auto* shared = static_cast<std::byte*>(to);
      const auto* from = static_cast<const std::byte*>(all) + slot * stride;
      for (int i = 16 * static_cast<int>(threadIdx.x); i < bytes; i += 16 * kThreads)
        cp_async(shared + i, from + i, true);
    };
    if (erases_) load(matrices.T[0].data, prepared_.T, Matrices::kMatrixBytes, Matrices::kMatrixBytes);
    load(matrices.A_qkT[0].data, prepared_.A_qkT, Matrices::kMatrixBytes, Matrices::kMatrixBytes);
    load(const_cast<float*>(matrices.factors), prepared_.factors, Matrices::kFactorBytes,
         kFactors * kChunk * static_cast<int>(sizeof(float)));
    cp_async_commit();
    cp_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
    return keys;
  }
  __device__ Matrices acquire_matrices() const { return Matrices(memory_ + Keys::kBytes, 0); }
  __device__ void release_matrices() const {}
  __device__ void release_keys() const { __syncthreads(); }

 private:
  const Dims& dims_;
  const Chunks& chunks_;
  const TokensIn &q_, &k_, &values_;
  const PreparedChunks& prepared_;
  const bool erases_;
  const ScanCoord& at_;
  const ScanWalk& walk_;
  const int value_columns_;
  unsigned char* const memory_;
};

// ---------------------------------------------------------------------------------------------------------------------
// Of two warpgroups, in bf16: a thread of a third one has the copy engine bring tiles, up to two chunks ahead.

// Stages that are filled and emptied in turn.
template <int kDepth>
struct StageRing {
  CopyBarrier full[kDepth], empty[kDepth];

  __device__ void init(int consumers) {
    for (int stage = 0; stage < kDepth; ++stage) full[stage].init(1), empty[stage].init(consumers);
  }
  // The nth use of the ring has stage n % kDepth.
  __device__ void wait_full(int n) const { full[n % kDepth].wait(n / kDepth % 2); }
  __device__ void wait_empty(int n) const {
    if (n >= kDepth) empty[n % kDepth].wait((n / kDepth + 1) % 2);
  }
};

template <int kKeyDim>
class CopyEnginePipeline {
 public:
  static constexpr int kWarpgroups = 2;
  static constexpr int kConsumers = kWarpgroups * kWarpgroupThreads;
  static constexpr int kThreads = kConsumers + kWarpgroupThreads;
  static constexpr int kMostKeys = 128;  // with more of them a state does not fit the registers of a consumer
  static constexpr int kMinBlocksPerSm = 1;
  using Keys = KeyTiles<bf16, kKeyDim>;
  using Matrices = MatrixTiles<bf16, kWarpgroups>;
  static constexpr int kKeyStages = 2;
  static constexpr int kMatrixStages = 2;
  static constexpr int kBytes = kKeyStages * Keys::kBytes + kMatrixStages * Matrices::kBytes;

  // `at` and `walk` are those of the job that is being worked on. `blocks`: how many of the block's warpgroups have
  // columns, in all of its jobs. Those whose `value_columns` are none get zeros.
  template <class Args>
  __device__ CopyEnginePipeline(const Args& a, const TokensIn& /*values*/, const ScanMaps& maps, const ScanCoord& at,
                                const ScanWalk& walk, int blocks, int value_columns, unsigned char* memory)
      : dims_(a.dims),
        chunks_(a.chunks),
        prepared_(a.prepared),
        erases_(a.erases),
        maps_(maps),
        at_(at),
        walk_(walk),
        blocks_(blocks),
        memory_(memory) {
    __shared__ Rings rings;
    rings_ = &rings;
    if (threadIdx.x == 0) {
      rings.keys.init(blocks * kWarpTiles);
      rings.matrices.init(blocks * kWarpTiles);
    }
    if (value_columns <= 0 && at.warpgroup < kWarpgroups) clear_values();
    __syncthreads();
  }

  // Before anything else.
  static __device__ void prefetch(const ScanMaps& maps) {
    if (threadIdx.x != kConsumers) return;
    prefetch_map(maps.q);
    prefetch_map(maps.k);
    prefetch_map(maps.values);
  }
  static __device__ bool is_producer() { return threadIdx.x >= kConsumers; }
  static __device__ void begin_producing() { keep_registers<24>(); }
  // The tiles of a job. `has_values(warpgroup)`: whether it has values to be copied.
  template <class HasValues>
  __device__ __forceinline__ void produce(const HasValues& has_values) {
    if (threadIdx.x != kConsumers) return;
    int valued = 0;
    for (int w = 0; w < blocks_; ++w) valued += has_values(w) ? 1 : 0;
#pragma unroll 1
    for (int n = 0; n < walk_.count; ++n, ++done_) {
      const int chunk = walk_.first + n * walk_.step;
      const ChunkRange range = chunk_range(chunks_, chunk, walk_.sequence);
      copy_keys(done_, range);
      copy_matrices(done_, chunk, range, valued, has_values);
    }
  }
  static __device__ void begin_consuming() { take_registers<240>(); }

  __device__ Keys acquire_keys(int chunk) {
    rings_->keys.wait_full(done_);
    const Keys keys = this->keys(done_);
    foreign_row_ = kChunk;
    if (chunks_.cu_seqlens != nullptr) {
      foreign_row_ = chunk_range(chunks_, chunk, walk_.sequence).tokens;
      if (foreign_row_ < kChunk) clear_foreign_rows(keys);
    }
    return keys;
  }
  __device__ Matrices acquire_matrices() const {
    rings_->matrices.wait_full(done_);
    const Matrices matrices = this->matrices(done_, at_.warpgroup);
    if (foreign_row_ < kChunk) {
      clear_rows(matrices.values, foreign_row_, at_.warpgroup * kWarpgroupThreads, kWarpgroupThreads);
      fence_async_proxy();  // the copy engine writes there next
      named_barrier(2 + at_.warpgroup, kWarpgroupThreads);
    }
    return matrices;
  }
  __device__ void release_matrices() const { release(rings_->matrices.empty[done_ % kMatrixStages]); }
  __device__ void release_keys() {
    release(rings_->keys.empty[done_ % kKeyStages]);
    ++done_;
  }

 private:
  struct Rings {
    StageRing<kKeyStages> keys;
    StageRing<kMatrixStages> matrices;
  };
  __device__ Keys keys(int n) const { return Keys(memory_ + n % kKeyStages * Keys::kBytes); }
  __device__ Matrices matrices(int n, int warpgroup) const {
    return Matrices(memory_ + kKeyStages * Keys::kBytes + n % kMatrixStages * Matrices::kBytes, warpgroup);
  }
  // A warp is done with a stage once it has waited for its products.
  static __device__ void release(CopyBarrier& empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) empty.arrive();
  }

  __device__ void copy_keys(int n, const ChunkRange& range) const {
    constexpr int kPanel = kChunk * kBlockV;
    rings_->keys.wait_empty(n);
    CopyBarrier& full = rings_->keys.full[n % kKeyStages];
    full.expect(Keys::kBytes);
    const Keys to = keys(n);
    const int q_head = at_.head / dims_.group_size;
#pragma unroll 1
    for (int panel = 0; panel < kKeyDim / kBlockV; ++panel) {
      const BoxOrigin rows{panel * kBlockV, static_cast<int>(range.first), q_head, static_cast<int>(range.batch)};
      copy_box(to.q.data + panel * kPanel, maps_.q, rows, full);
      copy_box(to.k.data + panel * kPanel, maps_.k, rows, full);
    }
  }
  template <class HasValues>
  __device__ void copy_matrices(int n, int chunk, const ChunkRange& range, int valued,
                                const HasValues& has_values) const {
    rings_->matrices.wait_empty(n);
    CopyBarrier& full = rings_->matrices.full[n % kMatrixStages];
    full.expect((erases_ ? 2 : 1) * Matrices::kMatrixBytes + valued * Matrices::kRowBytes + Matrices::kFactorBytes);
    const Matrices to = matrices(n, 0);
    const std::int64_t slot = std::int64_t{chunk} * dims_.value_heads + at_.head;
    const auto* T = static_cast<const std::byte*>(prepared_.T) + slot * Matrices::kMatrixBytes;
    const auto* A_qkT = static_cast<const std::byte*>(prepared_.A_qkT) + slot * Matrices::kMatrixBytes;
    if (erases_) copy_bytes(to.T[0].data, T, Matrices::kMatrixBytes, full);
    copy_bytes(to.A_qkT[0].data, A_qkT, Matrices::kMatrixBytes, full);
    copy_bytes(const_cast<float*>(to.factors), prepared_.factors + slot * (kFactors * kChunk), Matrices::kFactorBytes,
               full);
#pragma unroll 1
    for (int w = 0; w < blocks_; ++w) {
      if (!has_values(w)) continue;
      const BoxOrigin rows{(at_.first_block + w) * kBlockV, static_cast<int>(range.first), at_.head,
                           static_cast<int>(range.batch)};
      copy_box(matrices(n, w).values.data, maps_.values, rows, full);
    }
  }

  // Values that are never copied are zeros.
  __device__ void clear_values() const {
#pragma unroll 1
    for (int stage = 0; stage < kMatrixStages; ++stage)
      clear_rows(matrices(stage, at_.warpgroup).values, 0, at_.warpgroup * kWarpgroupThreads, kWarpgroupThreads);
  }
  // Behind the end of a packed sequence are the tokens of the next one, where there should be zeros.
  __device__ void clear_foreign_rows(const Keys& keys) const {
    clear_rows(keys.q, foreign_row_, 0, blocks_ * kWarpgroupThreads);
    clear_rows(keys.k, foreign_row_, 0, blocks_ * kWarpgroupThreads);
    fence_async_proxy();
    named_barrier(1, blocks_ * kWarpgroupThreads);
  }

  const Dims& dims_;
  const Chunks& chunks_;
  const PreparedChunks& prepared_;
  const bool erases_;
  const ScanMaps& maps_;
  const ScanCoord& at_;
  const ScanWalk& walk_;
  const int blocks_;
  unsigned char* const memory_;
  Rings* rings_;
  int done_ = 0, foreign_row_ = kChunk;
};

// Whether the copy engine can take everything from where it is.
template <class Args>
bool fits_copy_engine(const Context& context, const Args& a, const TokensIn& values) {
  const auto fits = [](const TokensIn& tensor) { return tensor.bf16 && tensor.aligned16; };
  return has_tensor_copies(context) && fits(a.q) && fits(a.k) && fits(values);
}
template <class Args>
ScanMaps scan_maps(const Args& a, const TokensIn& values) {
  const TensorExtents keys{a.dims.key_dim, a.tokens, a.dims.heads, a.batch};
  return {.q = tensor_map(a.q, keys, kChunk),
          .k = tensor_map(a.k, keys, kChunk),
          .values = tensor_map(values, {a.dims.value_dim, a.tokens, a.dims.value_heads, a.batch}, kChunk)};
}

}  // namespace qdelta::cuda::scan
