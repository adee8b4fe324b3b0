// What the kernels of the chunkwise recurrence are given, and the functions that launch them. Plain numbers and
// pointers, so that the files compiled for the GPU see neither views nor checks.
//
// A call is a few launches over the same workspace:
//   forward    locate, prepare, forward_scan
//   backward   locate; prepare, where the forward kept nothing; forward_scan, where it kept no states or sequences are
//              few; backward_scan; gradients; and where a row of dq and dk has several parts, finish_rows
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/context.h"
#include "rule/rule.h"

namespace qdelta::cuda {

inline constexpr int kChunk = 64;    // tokens
inline constexpr int kColumns = 64;  // value columns of a block
inline constexpr int kStrips = 4;    // warps of a scan's block, which share its columns
inline constexpr std::int64_t kMatrix = kChunk * kChunk;

// A [B, T, heads, width] or [B, T, heads] tensor; strides count elements, the width's is 1.
template <class Byte>
struct TokensOf {
  Byte* data = nullptr;
  std::int64_t batch = 0, token = 0, head = 0;
  bool bf16 = false;
  bool vectors = false;  // every row starts at a multiple of 16 bytes and is a whole number of them
};
using TokensIn = TokensOf<const std::byte>;
using TokensOut = TokensOf<std::byte>;

// States [index, head, K, V], the last axis contiguous.
template <class Byte>
struct StatesOf {
  Byte* data = nullptr;
  std::int64_t index = 0, head = 0, key = 0;
  int columns = 0;  // V, or whole blocks of columns in the workspace, zeros beyond V
  bool bf16 = false;
  bool vectors = false;
};
using StatesIn = StatesOf<const std::byte>;
using StatesOut = StatesOf<std::byte>;

// Which tokens the chunks have. Packed sequences come with tables, which `locate` fills on the device.
struct Chunks {
  std::int64_t sequences = 0, tokens = 0, per_sequence = 0;  // the last two of every sequence, unless packed
  std::int64_t total = 0;
  const std::int64_t* offsets = nullptr;  // [sequences + 1] into the tokens; null: not packed
  std::int64_t* first = nullptr;          // [sequences + 1] of the chunks of a sequence
  std::int32_t* owner = nullptr;          // [total] the sequence of a chunk
};

struct Dims {
  int heads, value_heads, shared;  // `shared` value heads for each query/key head
  int keys, values;                // K, V
  int blocks;                      // of kColumns value columns
};

// What the tokens of a chunk are multiplied by: rows of kChunk floats. G is the running sum of the log decays.
enum Factor : int {
  kReadOut,    // scale exp(G) / |q|
  kReadKey,    // erase exp(G) / |k|
  kReadQuery,  // erase exp(G) mix / |q|
  kWrite,      // write
  kToEnd,      // exp(G_end - G) / |k|
  kDecay,      // exp(G)
  kReadBoth,   // mix |k| / |q|, of queries that are added to keys before kReadKey
  kScanFactors,
  // The gradients also need:
  kLogHigh = kScanFactors,  // G / log 2 as the sum of two floats
  kLogLow,
  kErase,
  kMix,
  kQueryNorm,  // 1 / |q|, or 1
  kKeyNorm,
  kG,  // the rule's inputs
  kBeta,
  kLambda,
  kKeySquare,
  kFactors
};

// Matrices of a chunk are kept in parts that add up to them: bf16 operands have an upper and a lower half, because
// where keys are alike these matrices undo each other, and eight bits of them would show in the result.
[[nodiscard]] QDELTA_HOST_DEVICE constexpr int matrix_parts(bool bf16) { return bf16 ? 2 : 1; }

// Everything of a chunk that does not involve v, for chunk c of value head h at index c * value_heads + h. With norms,
// Q and K below are normalised ones. Only the 16 x 16 blocks up to the diagonal are there.
struct Prepared {
  void* attend = nullptr;    // [parts][kChunk][kChunk] lower(scale Gamma . Q K^T)
  void* inverse = nullptr;   // [parts][kChunk][kChunk] T = (I + A)^-1; rules that erase
  void* read = nullptr;      // [parts][kChunk][kChunk] strictLower(Gamma . X K^T); rules that erase, for the backward
  float* factors = nullptr;  // [kFactors][kChunk]
};

struct PrepareArgs {
  Dims dims;
  Chunks chunks;
  Rule rule;
  bool erases, norm;
  float scale;
  TokensIn q, k, g, beta, lambda;
  Prepared out;
};

// `fresh` is V', here and below: [parts][kChunk][blocks * kColumns] of the operand type for every chunk and head. It is
// kept in parts like the matrices: the gradients of the gates are sums of products with it that cancel.
struct ForwardScanArgs {
  Dims dims;
  Chunks chunks;
  bool erases, mixes;
  bool one_chunk;  // every chunk is a sequence of its own that starts from entry[chunk]
  TokensIn q, k, v;
  Prepared prepared;
  StatesIn entry;          // of the sequences; optional
  StatesOut chunk_states;  // optional
  StatesOut exit;          // optional
  TokensOut o;             // optional
  void* fresh = nullptr;   // optional
};

struct BackwardScanArgs {
  Dims dims;
  Chunks chunks;
  bool erases, mixes;
  TokensIn q, k, v, d_o;
  Prepared prepared;
  StatesIn states;     // on entry to every chunk
  StatesIn d_exit;     // optional
  StatesOut d_entry;   // optional
  StatesOut d_states;  // of the exit of every chunk
  TokensOut dv;
  void* fresh = nullptr;        // where the forward scan did not leave it
  void* d_residual = nullptr;   // dR, laid out as V'
  float* state_sums = nullptr;  // [chunks][value_heads][blocks][kStrips]: parts of sum(S . dS+), of unrounded dS+
};

struct GradientsArgs {
  Dims dims;
  Chunks chunks;
  Rule rule;
  bool erases, norm;
  bool adds_keys;  // does k.k have a gradient, which goes to k?
  float scale;
  TokensIn q, k, v, d_o;
  Prepared prepared;
  StatesIn states, d_states;
  const void* fresh = nullptr;
  const void* d_residual = nullptr;
  const float* state_sums = nullptr;
  TokensOut dq, dk, dg, dbeta, dlambda;
  // Where several value heads add to a row of dq and dk, or the keys take several passes: gradients of the normalised
  // rows, float32 [B, T, value_heads, K], and what to add of the key itself, [B, T, value_heads].
  float* dq_parts = nullptr;
  float* dk_parts = nullptr;
  float* d_key_square = nullptr;
  std::int64_t batch = 0, tokens = 0;  // B, T
};

void launch_locate(const Context& context, const Chunks& chunks);
void launch_prepare(const Context& context, const PrepareArgs& args, bool bf16);
void launch_forward_scan(const Context& context, const ForwardScanArgs& args, bool bf16);
void launch_backward_scan(const Context& context, const BackwardScanArgs& args, bool bf16);
void launch_gradients(const Context& context, const GradientsArgs& args, bool bf16);
void launch_finish_rows(const Context& context, const GradientsArgs& args);

// Lets a kernel have this much dynamic shared memory; an Error where the GPU has less.
void allow_shared_memory(const Context& context, const void* kernel, int bytes);

// Keys are padded to one of these widths.
inline constexpr int kWidestKeys = 256;
[[nodiscard]] constexpr int padded_keys(int keys) { return keys <= 64 ? 64 : keys <= 128 ? 128 : kWidestKeys; }
// How many of them the gradients of a chunk take at once.
[[nodiscard]] constexpr int gradient_keys(int padded, bool bf16) { return bf16 && padded > 64 ? 128 : 64; }

}  // namespace qdelta::cuda
