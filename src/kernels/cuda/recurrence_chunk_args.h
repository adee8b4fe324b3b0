// Arguments of the kernels of the chunkwise recurrence, and the functions that launch them. Plain numbers and pointers,
// so that the files compiled by nvcc see neither views nor checks.
//
// A call is a few launches over one workspace:
//   forward    build_chunk_tables (several packed sequences only), prepare, forward_scan
//   ... where sequences are few and long, the states on entry to their segments come first
//   (recurrence_chunk_segments.cu):
//              forward_scan for M and N of the segments, combine_segments
//   backward   build_chunk_tables; prepare and forward_scan, unless the forward saved its results; backward_scan;
//              gradients; and where a row of dq and dk has several partial sums, reduce_dqk
//
// Symbols as in recurrence_chunk_scan.cuh and recurrence_chunk_prepare.cu; C = kChunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/context.h"
#include "rule/rule.h"

namespace qdelta::cuda {

inline constexpr int kChunk = 64;                    // C, tokens
inline constexpr int kBlockV = 64;                   // value columns that are worked on together
inline constexpr int kWarpV = 16;                    // value columns of a warp tile, in the scans
inline constexpr int kWarpTiles = kBlockV / kWarpV;  // of a warpgroup, one for each warp
inline constexpr std::int64_t kChunkMatrix = kChunk * kChunk;

// A [B, T, heads, width] or [B, T, heads] tensor; strides count elements, that of the last axis is 1.
template <class Byte>
struct TokenTensor {
  Byte* data = nullptr;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
  bool bf16 = false;
  bool aligned16 = false;  // every row starts at a multiple of 16 bytes and is a whole number of them
};
using TokensIn = TokenTensor<const std::byte>;
using TokensOut = TokenTensor<std::byte>;

// States [index, head, K, V], the last axis contiguous.
template <class Byte>
struct StateTensor {
  Byte* data = nullptr;
  std::int64_t index_stride = 0, head_stride = 0, key_stride = 0;
  int columns = 0;  // V; in the workspace padded to a multiple of kBlockV with zeros
  bool bf16 = false;
  bool aligned16 = false;
};
using StatesIn = StateTensor<const std::byte>;
using StatesOut = StateTensor<std::byte>;

// The tokens of every chunk. Several packed sequences need tables, which build_chunk_tables fills on the device.
struct Chunks {
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;        // of a sequence; unused where packed
  std::int64_t per_sequence = 0;  // unused where there are tables
  std::int64_t total = 0;
  const std::int64_t* cu_seqlens = nullptr;  // [sequences + 1], from 0 on; null: not packed
  std::int64_t* first_chunk = nullptr;       // [sequences + 1] the first chunk of a sequence; null: there are no tables
  std::int32_t* sequence = nullptr;          // [total] the sequence of a chunk

  [[nodiscard]] QDELTA_HOST_DEVICE bool has_tables() const { return first_chunk != nullptr; }
};

// Runs of consecutive chunks of one sequence. A scan has a thread block for each of them (and each head and block of
// columns), so that one long sequence fills the GPU. Packed sequences need tables, as for the chunks.
struct Segments {
  std::int64_t total = 0;
  std::int64_t per_sequence = 0;  // unused where there are tables
  std::int64_t chunks = 0;        // of a segment; the last one of a sequence may have fewer
  // A sequence has its whole segments and one more, with what is left of it, which may be nothing: that one's entry
  // state is then the sequence's last.
  bool fixed = false;
  // Tables, where the chunks have some:
  std::int64_t* first_segment = nullptr;  // [sequences + 1] the first segment of a sequence
  std::int64_t* first_chunk = nullptr;    // [total + 1] the first chunk of a segment
  std::int32_t* sequence = nullptr;       // [total] the sequence of a segment
};

struct Dims {
  int heads, value_heads, group_size;  // H, HV, and value heads per query/key head
  int key_dim, value_dim;              // K, V
  int column_blocks;                   // blocks of kBlockV value columns
};

// Factors of a chunk's tokens, rows of kChunk floats. G is the running sum of the log decays in the chunk,
// gamma = exp(G); |q| and |k| are 1 without L2 norm.
enum Factor : int {
  kScaleGammaQ,     // scale gamma / |q|
  kEraseGammaK,     // erase gamma / |k|
  kEraseGammaMixQ,  // erase gamma mix / |q|
  kWrite,           // write
  kGammaToEndK,     // exp(G_C - G) / |k|
  kGamma,           // gamma
  kScanFactors,
  // The gradients also need:
  kLog2GammaHigh = kScanFactors,  // G / log 2 as the sum of two floats
  kLog2GammaLow,
  kErase,
  kMix,
  kInvNormQ,  // 1 / |q|
  kInvNormK,  // 1 / |k|
  kG,         // the inputs of the rule
  kBeta,
  kLambda,
  kKDotK,
  kFactors
};

// Chunk matrices, V' and dR are stored as a sum of so many operands: split bf16, a high and a low part. Where keys are
// alike these matrices cancel, and the eight bits of one bf16 would show in the result.
[[nodiscard]] QDELTA_HOST_DEVICE constexpr int operand_parts(bool bf16) { return bf16 ? 2 : 1; }

// Everything of a chunk that does not depend on v, for chunk c of value head h at index c * value_heads + h. Matrices,
// [parts][C][C], lie there as they will in shared memory (Tile in matrix_tile.cuh).
struct PreparedChunks {
  void* T = nullptr;         // (I + A)^-1; rules that erase
  void* A_qkT = nullptr;     // A_qk T
  float* factors = nullptr;  // [kFactors][C]
};

struct PrepareArgs {
  Dims dims;
  Chunks chunks;
  Rule rule;
  bool erases, qk_l2norm;
  float scale;
  std::int64_t batch, tokens;  // B, T
  TokensIn q, k, g, beta, lambda;
  PreparedChunks out;
};

// S_out = M S_in + N for every segment and head: what a forward scan gives from S = I without V, and from S = 0. Not of
// the last segment of a sequence, which nothing needs, unless `last`; M not of the first one, unless `first`.
struct SegmentMaps {
  float* M = nullptr;  // [segments][value_heads][K][K]
  float* N = nullptr;  // [segments][value_heads][K][V]; optional
  bool first = false, last = false;
  int n_blocks = 0;  // the first of a head's column_blocks are those of N, the others of M
};

// Equal jobs of a scan (a head of a sequence, whose columns are shared out among the blocks of a team) spread over
// fewer teams, which stay: a team has the chunks [t * chunks_per_team, (t + 1) * chunks_per_team) of all jobs in a row,
// the last of its jobs first. So of a job that two teams share, one has the beginning and does it first, the team after
// it the end, which it does last: it takes over the state as it is, and the result does not depend on where the cut
// lies. The blocks of a team follow each other, so that what they all read comes from memory once.
struct SharedJobs {
  int jobs = 0;
  int chunks_per_team = 0;         // 0: a team for each job
  int most_blocks = 0;             // what there is memory for
  float* states = nullptr;         // [blocks][warps]: of a team's last job, where the next team goes on with it
  std::uint32_t* ready = nullptr;  // [blocks][warps]: whether it is there; set to zero before the launch
};

// `v_new` is V', here and below: [parts][C][column_blocks * kBlockV] of the operand type for every chunk and head,
// split like the chunk matrices: the gradients of the gates are sums of products with it that cancel.
struct ForwardScanArgs {
  Dims dims;
  Chunks chunks;
  Segments segments;
  SharedJobs shared;
  bool erases;
  bool per_chunk;  // all chunks in parallel, each from initial_states[chunk]; else a scan over every segment
  std::int64_t batch, tokens;  // B, T
  TokensIn q, k, v;
  PreparedChunks prepared;
  StatesIn initial_states;  // of the segments, or chunks; optional
  StatesOut chunk_states;   // on entry to every chunk; optional
  StatesOut final_states;   // of the sequences; optional
  SegmentMaps maps;         // optional, and then the only results
  TokensOut o;              // optional
  void* v_new = nullptr;    // optional
};

struct BackwardScanArgs {
  Dims dims;
  Chunks chunks;
  Segments segments;
  SharedJobs shared;
  bool erases;
  std::int64_t batch, tokens;  // B, T
  TokensIn q, k, d_o;
  PreparedChunks prepared;
  StatesIn d_final_states;     // of the segments; optional
  StatesOut d_initial_states;  // of the sequences; optional
  // dN of every segment but the first of a sequence: its d_initial_states for d_final_states of zero, [segments]
  // [value_heads][K][V]. Optional, and then the only result.
  float* segment_dN = nullptr;
  bool first_dN = false;  // of the first ones too
  StatesOut d_states;     // dS+, on exit of every chunk
  TokensOut dv;
  void* d_residual = nullptr;  // dR, laid out as V'
};

// The states on entry to all segments from those on entry to the sequences, S_{s+1} = M_s S_s + N_s; or backward, the
// gradients on exit from all segments from those of the sequences, dS_{s-1} = M_s^T dS_s + dN_s.
struct CombineSegmentsArgs {
  Dims dims;
  std::int64_t sequences;
  Segments segments;
  bool backward;
  StatesIn start;            // h0, or the gradient of ht; optional
  const float* M = nullptr;  // [segments][value_heads][K][K]
  const float* N = nullptr;  // [segments][value_heads][K][V]; N, or dN
  float* states = nullptr;   // [segments][value_heads][K][V], written
};

struct GradientsArgs {
  Dims dims;
  Chunks chunks;
  Rule rule;
  bool erases, qk_l2norm;
  bool has_d_k_dot_k;  // the rule reads k.k, so that its gradient adds to dk
  float scale;
  TokensIn q, k, v, d_o;
  PreparedChunks prepared;
  StatesIn states, d_states;
  const void* v_new = nullptr;
  const void* d_residual = nullptr;
  TokensOut dq, dk, dg, dbeta, dlambda;
  // Where several value heads add to a row of dq and dk, or the key dimension takes several passes: gradients of the
  // normalised rows, float32 [B, T, value_heads, K], and the multiples of K to add to dk, [B, T, value_heads].
  // reduce_dqk finishes them.
  float* dq_partials = nullptr;
  float* dk_partials = nullptr;
  float* dk_factors = nullptr;
  std::int64_t batch = 0, tokens = 0;  // B, T
};

void launch_build_chunk_tables(const Context& context, const Chunks& chunks, const Segments& segments);
void launch_prepare(const Context& context, const PrepareArgs& args, bool bf16_operands);
void launch_forward_scan(const Context& context, const ForwardScanArgs& args, bool bf16_operands);
void launch_backward_scan(const Context& context, const BackwardScanArgs& args, bool bf16_operands);
void launch_combine_segments(const Context& context, const CombineSegmentsArgs& args);
void launch_gradients(const Context& context, const GradientsArgs& args, bool bf16_operands);
void launch_reduce_dqk(const Context& context, const GradientsArgs& args);

// Opts a kernel into this much dynamic shared memory; an Error where the GPU has less.
void allow_shared_memory(const Context& context, const void* kernel, int bytes);

// The key dimension is padded to one of these widths.
inline constexpr int kMaxKeyDim = 256;
[[nodiscard]] constexpr int padded_key_dim(int keys) { return keys <= 64 ? 64 : keys <= 128 ? 128 : kMaxKeyDim; }
// Keys that the gradients kernel takes in one pass.
[[nodiscard]] constexpr int gradient_key_tile(int padded, bool bf16) { return bf16 && padded > 64 ? 128 : 64; }

}  // namespace qdelta::cuda
