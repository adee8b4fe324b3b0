// Everything of a chunk that needs only q, k and the gates.
#if defined(QDELTA_KERNELS_CPU_RECURRENCE_CHUNK_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QDELTA_KERNELS_CPU_RECURRENCE_CHUNK_PREPARE_INL_H_
#undef QDELTA_KERNELS_CPU_RECURRENCE_CHUNK_PREPARE_INL_H_
#else
#define QDELTA_KERNELS_CPU_RECURRENCE_CHUNK_PREPARE_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>

#include "kernels/cpu/matrix-inl.h"
#include "kernels/cpu/recurrence_chunk.h"
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// Packs the rows, applies the norm and the rule. Leaves the decay of each single token in chunk.decay.
HWY_INLINE void LoadTokens(const ChunkPlan& plan, const RecurrenceInputs& in, std::int64_t sequence, std::int64_t head,
                           std::int64_t first, PreparedChunk& chunk) {
  const RecurrenceLayout& at = plan.at;
  const InRows q = at.rows(in.q, sequence, at.q_head(head));
  const InRows k = at.rows(in.k, sequence, at.q_head(head));
  const InRows g = at.rows(in.g, sequence, head);
  const InRows beta = at.rows(in.beta, sequence, head);
  const InRows lambda = at.rows(in.lambda, sequence, head);
  const InRows v = at.rows(in.v, sequence, head);
  const std::int64_t length = at.length(sequence);
  chunk.rows = std::min(plan.C, length - first);
  chunk.padded = round_up(chunk.rows, kVectorPad);
  for (std::int64_t r = 0; r < chunk.rows; ++r) {
    float* q_row = chunk.q + r * plan.ldk;
    float* k_row = chunk.k + r * plan.ldk;
    PrefetchAhead(q, first + r, length, at.K);
    PrefetchAhead(k, first + r, length, at.K);
    PrefetchAhead(v, first + r, length, at.V);  // needed soon, and then row after row without a pause
    LoadRow(q.row(first + r), q.dtype, q.step, at.K, q_row, plan.Kp);
    LoadRow(k.row(first + r), k.dtype, k.step, at.K, k_row, plan.Kp);
    const RowNorm q_norm = in.qk_l2norm ? NormOf(q_row, plan.Kp) : RowNorm{1.0F, 0.0F};
    const RowNorm k_norm = in.qk_l2norm ? NormOf(k_row, plan.Kp) : RowNorm{1.0F, Dot(k_row, k_row, plan.Kp)};
    chunk.q_inverse_norm[r] = q_norm.factor;
    chunk.k_inverse_norm[r] = k_norm.factor;
    chunk.rule_in[r] = {gate_at(g, first + r), gate_at(beta, first + r), gate_at(lambda, first + r), k_norm.square};
    const RuleOutputs<float> out = rule_forward(in.rule, chunk.rule_in[r]);
    chunk.decay[r] = std::exp(out.log_decay);
    chunk.erase[r] = out.erase;
    chunk.mix[r] = out.mix;
    chunk.write[r] = out.write;
    ScaleAndMix(q_norm.factor, k_norm.factor, out.mix, q_row, k_row, chunk.x(plan.ldk) + r * plan.ldk, plan.Kp);
  }
  for (std::int64_t r = chunk.rows; r < chunk.padded; ++r) {
    std::fill_n(chunk.q + r * plan.ldk, plan.Kp, 0.0F);
    std::fill_n(chunk.k + r * plan.ldk, plan.Kp, 0.0F);
    std::fill_n(chunk.x(plan.ldk) + r * plan.ldk, plan.Kp, 0.0F);
    chunk.decay[r] = 1.0F;
    chunk.erase[r] = chunk.mix[r] = chunk.write[r] = 0.0F;
  }
}

HWY_INLINE void Prepare(const ChunkPlan& plan, const RecurrenceInputs& in, std::int64_t sequence, std::int64_t head,
                        std::int64_t first, PreparedChunk& chunk) {
  LoadTokens(plan, in, sequence, head, first, chunk);
  const bool erases = traits_of(in.rule).erases;
  const std::int64_t rows = chunk.padded;
  float* qk = chunk.products;
  float* xk = chunk.products + rows * plan.ldc;
  Transpose(rows, plan.Kp, chunk.k, plan.ldk, chunk.kt, plan.ldc);
  LowerOfProduct(rows, plan.Kp, chunk.q, plan.ldk, chunk.kt, plan.ldc, qk, plan.ldc, false);
  if (erases) LowerOfProduct(rows, plan.Kp, chunk.x(plan.ldk), plan.ldk, chunk.kt, plan.ldc, xk, plan.ldc, false);

  // Row r of Gamma is row r - 1 times the decay of token r, with one on the diagonal: exact for g = 0, and right for
  // any decay that underflows, even to zero.
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Vector scale = hn::Set(d, in.scale);
  for (std::int64_t r = 0; r < rows; ++r) {
    const Vector row = hn::Set(d, static_cast<float>(r));
    const Vector decay = hn::Set(d, chunk.decay[r]);
    const Vector minus_erase = hn::Set(d, -chunk.erase[r]);
    for (std::int64_t i = 0; i < rows; i += lanes) {
      const Vector column = hn::Iota(d, static_cast<float>(i));
      const auto below = hn::Lt(column, row);
      const auto on = hn::Eq(column, row);
      const std::int64_t at = r * plan.ldc + i;
      const Vector above = r == 0 ? hn::Zero(d) : hn::Load(d, chunk.gamma + at - plan.ldc);
      const Vector gamma = hn::IfThenElse(on, hn::Set(d, 1.0F), hn::IfThenElseZero(below, hn::Mul(above, decay)));
      hn::Store(gamma, d, chunk.gamma + at);
      const Vector attend = hn::Mul(scale, hn::Mul(gamma, hn::Load(d, qk + at)));
      hn::Store(hn::IfThenElseZero(hn::Or(below, on), attend), d, chunk.attend + at);
      if (erases) {
        const Vector read = hn::IfThenElseZero(below, hn::Mul(gamma, hn::Load(d, xk + at)));
        hn::Store(read, d, chunk.read + at);
        hn::Store(hn::Mul(minus_erase, read), d, chunk.correct + at);
      }
    }
    if (r > 0) chunk.decay[r] *= chunk.decay[r - 1];  // from here on: from the entry of the chunk
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
