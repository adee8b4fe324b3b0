// The end of a chunk's backward: from the sums over value columns to dq, dk and the gradients of the gates. The
// formulas stand at the top of recurrence_chunk.cpp.
#if defined(QDELTA_KERNELS_CPU_RECURRENCE_CHUNK_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QDELTA_KERNELS_CPU_RECURRENCE_CHUNK_GRADIENTS_INL_H_
#undef QDELTA_KERNELS_CPU_RECURRENCE_CHUNK_GRADIENTS_INL_H_
#else
#define QDELTA_KERNELS_CPU_RECURRENCE_CHUNK_GRADIENTS_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/cpu/matrix-inl.h"
#include "kernels/cpu/recurrence_chunk.h"
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// Turns the sums dO V'^T and dR V'^T of a chunk into scale Gamma . dO V'^T (lower) and diag(erase) Gamma . dA (strictly
// lower) in place. Adds to derase, and leaves in chunk.products the element-wise product of value and gradient of every
// Gamma[r][i], i < r.
HWY_INLINE void MaskedGradients(const ChunkPlan& plan, const RecurrenceInputs& in, const PreparedChunk& chunk,
                                float* d_attend, float* derase) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const bool erases = traits_of(in.rule).erases;
  const std::int64_t rows = chunk.padded;
  float* d_correct = d_attend + rows * plan.ldc;
  const Vector scale = hn::Set(d, in.scale);
  for (std::int64_t r = 0; r < rows; ++r) {
    const Vector row = hn::Set(d, static_cast<float>(r));
    const Vector erase = hn::Set(d, chunk.erase[r]);
    Vector erase_sum = hn::Zero(d);
    for (std::int64_t i = 0; i < rows; i += lanes) {
      const Vector column = hn::Iota(d, static_cast<float>(i));
      const auto below = hn::Lt(column, row);
      const auto lower = hn::Le(column, row);
      const std::int64_t at = r * plan.ldc + i;
      const Vector gamma = hn::Load(d, chunk.gamma + at);
      const Vector raw = hn::Load(d, d_attend + at);
      hn::Store(hn::IfThenElseZero(lower, hn::Mul(scale, hn::Mul(gamma, raw))), d, d_attend + at);
      Vector along = hn::Mul(raw, hn::Load(d, chunk.attend + at));
      if (erases) {
        const Vector da = hn::Neg(hn::Load(d, d_correct + at));
        const Vector through_read = hn::IfThenElseZero(below, hn::Mul(da, hn::Load(d, chunk.read + at)));
        erase_sum = hn::Add(erase_sum, through_read);
        along = hn::MulAdd(erase, through_read, along);
        hn::Store(hn::IfThenElseZero(below, hn::Mul(erase, hn::Mul(gamma, da))), d, d_correct + at);
      }
      hn::Store(hn::IfThenElseZero(below, along), d, chunk.products + at);
    }
    if (erases) derase[r] += hn::GetLane(hn::SumOfLanes(d, erase_sum));
  }
}

// dg_t += the sum over r >= t > i of along[r][i]: every factor Gamma[r][i] that spans token t. No difference of sums is
// taken, so nothing cancels.
HWY_INLINE void DecayGradient(const ChunkPlan& plan, const PreparedChunk& chunk, float* column_sums, float* dg) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t rows = chunk.padded;
  std::fill_n(column_sums, rows, 0.0F);
  for (std::int64_t t = rows - 1; t > 0; --t) {
    Vector spanning = hn::Zero(d);
    const Vector here = hn::Set(d, static_cast<float>(t));
    for (std::int64_t i = 0; i < t; i += lanes) {
      const Vector sums = hn::Add(hn::Load(d, column_sums + i), hn::Load(d, chunk.products + t * plan.ldc + i));
      hn::Store(sums, d, column_sums + i);
      spanning = hn::Add(spanning, hn::IfThenElseZero(hn::Lt(hn::Iota(d, static_cast<float>(i)), here), sums));
    }
    dg[t] += hn::GetLane(hn::SumOfLanes(d, spanning));
  }
}

HWY_INLINE void ChunkGradients(const ChunkPlan& plan, const RecurrenceBackward& args, const BackwardMemory& work,
                               std::int64_t sequence, std::int64_t head, std::int64_t first, BackwardScratch& s) {
  const RecurrenceLayout& at = plan.at;
  const RecurrenceInputs& in = args.in;
  const PreparedChunk& chunk = s.chunk;
  const bool erases = traits_of(in.rule).erases;
  const std::int64_t rows = chunk.padded;
  const std::int64_t ldk = plan.ldk;
  const float* last_gamma = chunk.gamma + (rows - 1) * plan.ldc;
  float* dq = s.sums.q_and_x;
  float* dx = s.sums.q_and_x + rows * ldk;
  float* dk = s.sums.k;
  // The scratch of the column groups is free by now.
  float* derase = s.values;
  float* dg = s.values + plan.C;
  std::fill_n(derase, 2 * plan.C, 0.0F);

  // Decays that cross the chunk's edges: gamma_r spans tokens 0..r, Gamma_C[i] tokens i+1..end, gamma_C all of them.
  float to_end = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    float* dk_row = dk + r * ldk;
    ScaleInto(last_gamma[r], dk_row, dk_row, plan.Kp);
    dg[r] += to_end;
    to_end += Dot(chunk.k + r * ldk, dk_row, plan.Kp);
  }
  float from_entry = chunk.decay[rows - 1] * *s.sums.state;
  for (std::int64_t r = rows - 1; r >= 0; --r) {
    float* dq_row = dq + r * ldk;
    ScaleInto(in.scale * chunk.decay[r], dq_row, dq_row, plan.Kp);
    from_entry += Dot(chunk.q + r * ldk, dq_row, plan.Kp);
    if (erases) {
      float* dx_row = dx + r * ldk;
      const float through_read = -chunk.decay[r] * Dot(chunk.x(ldk) + r * ldk, dx_row, plan.Kp);
      derase[r] += through_read;
      from_entry += chunk.erase[r] * through_read;
      ScaleInto(-chunk.erase[r] * chunk.decay[r], dx_row, dx_row, plan.Kp);
    }
    dg[r] += from_entry;
  }

  // Decays inside the chunk.
  float* d_attend = s.sums.attend;
  float* d_correct = s.sums.attend + rows * plan.ldc;
  MaskedGradients(plan, in, chunk, d_attend, derase);
  DecayGradient(plan, chunk, s.column_sums, dg);

  LowerTimes(rows, plan.Kp, d_attend, plan.ldc, chunk.k, ldk, dq, ldk);
  LowerTransposedTimes(rows, plan.Kp, d_attend, plan.ldc, chunk.q, ldk, dk, ldk);
  if (erases) {
    LowerTimes(rows, plan.Kp, d_correct, plan.ldc, chunk.k, ldk, dx, ldk);
    LowerTransposedTimes(rows, plan.Kp, d_correct, plan.ldc, chunk.x(ldk), ldk, dk, ldk);
  }

  // The rule, the norm, and out.
  const bool shared = static_cast<bool>(work.dq_heads);
  const OutRows dq_rows = at.rows(shared ? work.dq_heads : args.dq, sequence, head);
  const OutRows dk_rows = at.rows(shared ? work.dk_heads : args.dk, sequence, head);
  const OutRows dg_rows = at.rows(args.dg, sequence, head);
  const OutRows dbeta_rows = at.rows(args.dbeta, sequence, head);
  const OutRows dlambda_rows = at.rows(args.dlambda, sequence, head);
  for (std::int64_t r = 0; r < chunk.rows; ++r) {
    float* dq_row = dq + r * ldk;
    float* dk_row = dk + r * ldk;
    const float* dx_row = dx + r * ldk;
    RuleOutputs<float> d_rule{dg[r], derase[r], 0.0F, s.sums.write[r]};
    if (erases) {
      d_rule.mix = Dot(dx_row, chunk.q + r * ldk, plan.Kp);
      Combine(1.0F, dk_row, 1.0F, dx_row, dk_row, plan.Kp);
      Combine(1.0F, dq_row, chunk.mix[r], dx_row, dq_row, plan.Kp);
    }
    const RuleInputs<float> d_in = rule_backward(in.rule, chunk.rule_in[r], d_rule);
    if (d_in.k_dot_k != 0.0F) Combine(1.0F, dk_row, 2.0F * d_in.k_dot_k, chunk.k + r * ldk, dk_row, plan.Kp);
    if (in.qk_l2norm) {
      NormaliseBackward(chunk.q + r * ldk, chunk.q_inverse_norm[r], dq_row, plan.Kp);
      NormaliseBackward(chunk.k + r * ldk, chunk.k_inverse_norm[r], dk_row, plan.Kp);
    }
    StoreRow(dq_rows.row(first + r), dq_rows.dtype, dq_rows.step, at.K, dq_row);
    StoreRow(dk_rows.row(first + r), dk_rows.dtype, dk_rows.step, at.K, dk_row);
    set_gate(dg_rows, first + r, d_in.g);
    set_gate(dbeta_rows, first + r, d_in.beta);
    set_gate(dlambda_rows, first + r, d_in.lambda);
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
