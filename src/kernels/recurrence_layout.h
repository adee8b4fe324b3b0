// Where things are: the tokens of a sequence inside the tensors of a call, and the chunks of a sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "kernels/recurrence.h"

namespace qdelta {

// The tokens of a chunk, where the chunk form runs.
[[nodiscard]] constexpr int chunk_length(const Execution& run) { return run.chunk > 0 ? run.chunk : kDefaultChunk; }

// The rows of one head of one sequence: row t starts at base + t * token_bytes and its elements are `step` apart.
template <class Byte>
struct RowsOf {
  Byte* base = nullptr;
  DType dtype = DType::f32;
  std::int64_t token_bytes = 0;
  std::int64_t step = 1;

  [[nodiscard]] Byte* row(std::int64_t t) const { return base + t * token_bytes; }
};
using InRows = RowsOf<const std::byte>;
using OutRows = RowsOf<std::byte>;

// A gate, or its gradient, of one head of one sequence. Rows of one element.
template <class Byte>
[[nodiscard]] float gate_at(const RowsOf<Byte>& rows, std::int64_t t) {
  if (rows.base == nullptr) return 0.0F;
  if (rows.dtype == DType::bf16) return static_cast<float>(*reinterpret_cast<const BFloat16*>(rows.row(t)));
  return *reinterpret_cast<const float*>(rows.row(t));
}
inline void set_gate(const OutRows& rows, std::int64_t t, float value) {
  if (rows.base == nullptr) return;
  if (rows.dtype == DType::bf16) {
    *reinterpret_cast<BFloat16*>(rows.row(t)) = BFloat16(value);
  } else {
    *reinterpret_cast<float*>(rows.row(t)) = value;
  }
}

// The matrix of one state: `rows` are K, elements of a row V.
template <class T>
struct StateOf {
  T* data = nullptr;
  std::int64_t row_step = 0, step = 1;
};

struct RecurrenceLayout {
  std::int64_t B, T, H, HV, K, V, N;
  std::int64_t chunk;
  std::int64_t total_chunks = 0;
  std::span<const std::int64_t> cu_seqlens;

  RecurrenceLayout(const RecurrenceInputs& in, std::int64_t chunk_length)
      : B(in.q.extent(0)),
        T(in.q.extent(1)),
        H(in.q.extent(2)),
        HV(in.v.extent(2)),
        K(in.q.extent(3)),
        V(in.v.extent(3)),
        N(in.cu_seqlens.empty() ? B : static_cast<std::int64_t>(in.cu_seqlens.size()) - 1),
        chunk(chunk_length),
        cu_seqlens(in.cu_seqlens) {
    total_chunks = first_chunk(N);
  }

  [[nodiscard]] std::int64_t length(std::int64_t n) const {
    return cu_seqlens.empty() ? T : cu_seqlens[n + 1] - cu_seqlens[n];
  }
  [[nodiscard]] std::int64_t chunks(std::int64_t n) const { return ceil_div(length(n), chunk); }
  // The number of chunks of all sequences before n.
  [[nodiscard]] std::int64_t first_chunk(std::int64_t n) const {
    if (cu_seqlens.empty()) return n * chunks(0);
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += chunks(i);
    return sum;
  }
  [[nodiscard]] std::int64_t q_head(std::int64_t head) const { return head / (HV / H); }

  // Tokens of sequence n in a [B, T, heads, width] or [B, T, heads] tensor.
  template <class Byte>
  [[nodiscard]] RowsOf<Byte> rows(const BasicView<Byte>& view, std::int64_t n, std::int64_t head) const {
    if (!view) return {};
    const auto size = static_cast<std::int64_t>(size_of(view.dtype));
    const std::int64_t offset = cu_seqlens.empty() ? n * view.step(0) : cu_seqlens[n] * view.step(1);
    return {view.data + (offset + head * view.step(2)) * size, view.dtype, view.step(1) * size,
            view.shape.rank == 4 ? view.step(3) : 1};
  }
};

// State `index` of head `head` in a [N, HV, K, V] float tensor.
inline StateOf<const float> state_of(const ConstTensorView& view, std::int64_t index, std::int64_t head) {
  if (!view) return {};
  const auto* data = reinterpret_cast<const float*>(view.data);
  return {data + index * view.step(0) + head * view.step(1), view.step(2), view.step(3)};
}
inline StateOf<float> state_of(const TensorView& view, std::int64_t index, std::int64_t head) {
  if (!view) return {};
  auto* data = reinterpret_cast<float*>(view.data);
  return {data + index * view.step(0) + head * view.step(1), view.step(2), view.step(3)};
}

}  // namespace qdelta
