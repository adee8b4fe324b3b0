// The recurrence over chunks of C tokens: matrix products instead of token by token. Per head, S[K][V] the state on
// entry, Gamma[r][i] the decay from token i to token r (a product of decays, never a quotient), gamma that from the
// entry, X = K + diag(mix) Q:
//
//   A  = strictLower( diag(erase) (Gamma . X K^T) )
//   R  = diag(write) V - diag(erase gamma) X S
//   V' = (I + A)^-1 R                                    by substitution; the inverse is never formed
//   O  = scale ( diag(gamma) Q S + lower(Gamma . Q K^T) V' )
//   S+ = gamma_C S + (diag(Gamma_C) K)^T V'
//
// Backward, from the last chunk to the first, dS+ the gradient of S+ and dO that of O:
//
//   dV' = scale lower(Gamma . Q K^T)^T dO + diag(Gamma_C) K dS+
//   dR  = (I + A)^-T dV'                                 again by substitution
//   dV  = diag(write) dR                dwrite = rowsum(dR . V)
//   dS  = gamma_C dS+ + scale (diag(gamma) Q)^T dO - (diag(erase gamma) X)^T dR
//   dA  = -strictLower(dR V'^T)         since V' = (I + A)^-1 R
//   P   = lower(Gamma . dO V'^T)
//   dX  = -diag(erase gamma) dR S^T + diag(erase) (Gamma . dA) K
//   dQ  = scale (diag(gamma) dO S^T + P K) + diag(mix) dX
//   dK  = diag(Gamma_C) V' dS+^T + scale P^T Q + (Gamma . dA)^T diag(erase) X + dX
//   dmix = rowsum(dX . Q)               derase = -rowsum(diag(gamma) X . dR S^T) + rowsum(dA . Gamma . X K^T)
//
// and dg_t is the sum of (value . gradient) over every decay factor that spans token t. The gradient of the entry state
// alone (recurrence_map.h) is dV', dR and dS of this.
#include "kernels/cpu/recurrence_chunk.h"

#include "core/threads.h"
#include "kernels/cpu/bf16_product.h"
#include "kernels/cpu/recurrence_map.h"

#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence_chunk.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/matrix-inl.h"
#include "kernels/cpu/recurrence_chunk_gradients-inl.h"
#include "kernels/cpu/recurrence_chunk_prepare-inl.h"
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// A large product, in the precision the plan asks for.
template <Left left, Into into>
HWY_INLINE void Multiply(const ChunkPlan& plan, std::byte* packing, std::int64_t rows, std::int64_t cols,
                         std::int64_t inner, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                         float* c, std::int64_t ldc, float scale = 1.0F) {
  if (plan.bf16_products) {
    bf16_product<left, into>(rows, cols, inner, a, lda, b, ldb, c, ldc, scale, packing);
  } else {
    Product<left, into>(rows, cols, inner, a, lda, b, ldb, c, ldc, scale);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward.

// R = diag(write) V - diag(erase gamma) X S, into `v_new`, from X S in `reads`.
HWY_INLINE void Residual(const PreparedChunk& chunk, bool erases, const float* values, const float* reads, float* v_new,
                         std::int64_t width) {
  for (std::int64_t r = 0; r < chunk.padded; ++r) {
    if (erases) {
      Combine(chunk.write[r], values + r * kColumnGroupStride, -chunk.erase[r] * chunk.decay[r],
              reads + r * kColumnGroupStride, v_new + r * kColumnGroupStride, width);
    } else {
      ScaleInto(chunk.write[r], values + r * kColumnGroupStride, v_new + r * kColumnGroupStride, width);
    }
  }
}

HWY_INLINE void LoadRows(const InRows& rows, std::int64_t first, const PreparedChunk& chunk, std::int64_t begin,
                         std::int64_t width, std::int64_t padded_width, float* out) {
  const std::int64_t offset = begin * rows.step * static_cast<std::int64_t>(size_of(rows.dtype));
  for (std::int64_t r = 0; r < chunk.rows; ++r) {
    LoadRow(rows.row(first + r) + offset, rows.dtype, rows.step, width, out + r * kColumnGroupStride, padded_width);
  }
  for (std::int64_t r = chunk.rows; r < chunk.padded; ++r)
    std::fill_n(out + r * kColumnGroupStride, padded_width, 0.0F);
}

// All chunks of one unit. Without `o` only the states are computed.
void ForwardUnit(const ChunkPlan& plan, const RecurrenceInputs& in, const TensorView& o, const TensorView& ht,
                 const TensorView& chunk_states, const ChunkUnit& unit, std::byte* memory) {
  const RecurrenceLayout& at = plan.at;
  const bool erases = traits_of(in.rule).erases;
  const bool wants_output = static_cast<bool>(o);
  BumpAllocator allocator(memory);
  ForwardScratch s(plan, allocator);
  PreparedChunk& chunk = s.chunk;
  const InRows v_rows = at.rows(in.v, unit.sequence, unit.head);
  const OutRows o_rows = at.rows(o, unit.sequence, unit.head);
  const std::int64_t state_size = plan.Kp * kColumnGroupStride;
  const std::int64_t first_chunk = at.first_chunk(unit.sequence);

  for (std::int64_t group = unit.group_begin; group < unit.group_end; ++group) {
    LoadState(state_of(in.h0, unit.sequence, unit.head), at.K, plan.Kp, group * kColumnGroup, plan.width(group),
              plan.padded_width(group), s.state + (group - unit.group_begin) * state_size, kColumnGroupStride);
  }
  for (std::int64_t c = 0; c < at.chunks(unit.sequence); ++c) {
    const std::int64_t first = c * plan.C;
    Prepare(plan, in, unit.sequence, unit.head, first, chunk);
    const std::int64_t rows = chunk.padded;
    const float* last_gamma = chunk.gamma + (rows - 1) * plan.ldc;
    for (std::int64_t group = unit.group_begin; group < unit.group_end; ++group) {
      float* state = s.state + (group - unit.group_begin) * state_size;
      const std::int64_t width = plan.padded_width(group);
      StoreState(state_of(chunk_states, first_chunk + c, unit.head), at.K, group * kColumnGroup, plan.width(group),
                 state, kColumnGroupStride);
      // Q S and X S at once, as far as they are wanted.
      const std::int64_t begin = wants_output ? 0 : rows;
      const std::int64_t end = erases ? 2 * rows : rows;
      if (begin < end) {
        Multiply<Left::row_major, Into::set>(plan, s.packing, end - begin, width, plan.Kp, chunk.q + begin * plan.ldk,
                                             plan.ldk, state, kColumnGroupStride, s.reads + begin * kColumnGroupStride,
                                             kColumnGroupStride);
      }
      LoadRows(v_rows, first, chunk, group * kColumnGroup, plan.width(group), width, s.v_new);
      Residual(chunk, erases, s.v_new, s.reads + rows * kColumnGroupStride, s.v_new, width);
      if (erases) SolveLower(rows, width, chunk.correct, plan.ldc, s.v_new, kColumnGroupStride);

      if (wants_output) {
        for (std::int64_t r = 0; r < rows; ++r)
          ScaleInto(in.scale * chunk.decay[r], s.reads + r * kColumnGroupStride, s.reads + r * kColumnGroupStride,
                    width);
        LowerTimes(rows, width, chunk.attend, plan.ldc, s.v_new, kColumnGroupStride, s.reads, kColumnGroupStride);
        const std::int64_t offset =
            group * kColumnGroup * o_rows.step * static_cast<std::int64_t>(size_of(o_rows.dtype));
        for (std::int64_t r = 0; r < chunk.rows; ++r) {
          StoreRow(o_rows.row(first + r) + offset, o_rows.dtype, o_rows.step, plan.width(group),
                   s.reads + r * kColumnGroupStride);
        }
      }
      for (std::int64_t r = 0; r < rows; ++r)
        ScaleInto(last_gamma[r], s.v_new + r * kColumnGroupStride, s.v_new + r * kColumnGroupStride, width);
      Multiply<Left::column_major, Into::scale_add>(plan, s.packing, plan.Kp, width, rows, chunk.k, plan.ldk, s.v_new,
                                                    kColumnGroupStride, state, kColumnGroupStride,
                                                    chunk.decay[rows - 1]);
    }
  }
  for (std::int64_t group = unit.group_begin; group < unit.group_end; ++group) {
    StoreState(state_of(ht, unit.sequence, unit.head), at.K, group * kColumnGroup, plan.width(group),
               s.state + (group - unit.group_begin) * state_size, kColumnGroupStride);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward.

// dR in the place of dV', from dO and dS+.
HWY_INLINE void ResidualGradient(const ChunkPlan& plan, const PreparedChunk& chunk, bool erases, std::byte* packing,
                                 const float* d_out, const float* d_state, float* d_residual, std::int64_t width) {
  const std::int64_t rows = chunk.padded;
  const float* last_gamma = chunk.gamma + (rows - 1) * plan.ldc;
  Multiply<Left::row_major, Into::set>(plan, packing, rows, width, plan.Kp, chunk.k, plan.ldk, d_state,
                                       kColumnGroupStride, d_residual, kColumnGroupStride);
  for (std::int64_t r = 0; r < rows; ++r)
    ScaleInto(last_gamma[r], d_residual + r * kColumnGroupStride, d_residual + r * kColumnGroupStride, width);
  LowerTransposedTimes(rows, width, chunk.attend, plan.ldc, d_out, kColumnGroupStride, d_residual, kColumnGroupStride);
  if (erases) SolveLowerTransposed(rows, width, chunk.correct, plan.ldc, d_residual, kColumnGroupStride);
}

// dS in the place of dS+:  dS = gamma_C dS+ + [Q; X]^T [scale gamma dO; -erase gamma dR], and dO and dR, which lie one
// after the other, become what stands there.
HWY_INLINE void StateGradient(const ChunkPlan& plan, const PreparedChunk& chunk, bool erases, float scale,
                              std::byte* packing, float* d_out, float* d_state, std::int64_t width) {
  const std::int64_t rows = chunk.padded;
  float* d_residual = d_out + rows * kColumnGroupStride;
  for (std::int64_t r = 0; r < rows; ++r) {
    ScaleInto(scale * chunk.decay[r], d_out + r * kColumnGroupStride, d_out + r * kColumnGroupStride, width);
    if (erases)
      ScaleInto(-chunk.erase[r] * chunk.decay[r], d_residual + r * kColumnGroupStride,
                d_residual + r * kColumnGroupStride, width);
  }
  Multiply<Left::column_major, Into::scale_add>(plan, packing, plan.Kp, width, erases ? 2 * rows : rows, chunk.q,
                                                plan.ldk, d_out, kColumnGroupStride, d_state, kColumnGroupStride,
                                                chunk.decay[rows - 1]);
}

// One column group of one chunk: gives dV, turns dS+ into dS in place, adds to the sums over columns.
HWY_INLINE void BackwardGroup(const ChunkPlan& plan, const RecurrenceBackward& args, const PreparedChunk& chunk,
                              const OutRows& dv_rows, std::int64_t first, std::int64_t group, BackwardScratch& s,
                              float* d_state) {
  const RecurrenceInputs& in = args.in;
  const bool erases = traits_of(in.rule).erases;
  const std::int64_t rows = chunk.padded;
  const std::int64_t both = erases ? 2 * rows : rows;  // dO alone, or dO and dR
  const std::int64_t width = plan.padded_width(group);
  float* d_out = s.d_out;                                   // dO
  float* d_residual = s.d_out + rows * kColumnGroupStride;  // dV', then dR

  // V' again, from the state on entry.
  if (erases) {
    Multiply<Left::row_major, Into::set>(plan, s.packing, rows, width, plan.Kp, chunk.x(plan.ldk), plan.ldk, s.state,
                                         kColumnGroupStride, s.v_new, kColumnGroupStride);
  }
  Residual(chunk, erases, s.values, s.v_new, s.v_new, width);
  if (erases) SolveLower(rows, width, chunk.correct, plan.ldc, s.v_new, kColumnGroupStride);

  ResidualGradient(plan, chunk, erases, s.packing, d_out, d_state, d_residual, width);

  // dV and dwrite.
  const std::int64_t offset = group * kColumnGroup * dv_rows.step * static_cast<std::int64_t>(size_of(dv_rows.dtype));
  for (std::int64_t r = 0; r < chunk.rows; ++r) {
    const float* dr = d_residual + r * kColumnGroupStride;
    s.sums.write[r] += Dot(dr, s.values + r * kColumnGroupStride, width);
    ScaleInto(chunk.write[r], dr, s.values + r * kColumnGroupStride, width);
    StoreRow(dv_rows.row(first + r) + offset, dv_rows.dtype, dv_rows.step, plan.width(group),
             s.values + r * kColumnGroupStride);
  }

  // Sums over columns.
  Transpose(plan.Kp, width, s.state, kColumnGroupStride, s.state_t, plan.ldk);
  Transpose(plan.Kp, width, d_state, kColumnGroupStride, s.d_state_t, plan.ldk);
  Transpose(rows, width, s.v_new, kColumnGroupStride, s.v_new_t, plan.ldc);
  Multiply<Left::row_major, Into::add>(plan, s.packing, both, plan.Kp, width, d_out, kColumnGroupStride, s.state_t,
                                       plan.ldk, s.sums.q_and_x, plan.ldk);
  Multiply<Left::row_major, Into::add>(plan, s.packing, rows, plan.Kp, width, s.v_new, kColumnGroupStride, s.d_state_t,
                                       plan.ldk, s.sums.k, plan.ldk);
  LowerOfProduct(rows, width, d_out, kColumnGroupStride, s.v_new_t, plan.ldc, s.sums.attend, plan.ldc, true);
  if (erases) {
    LowerOfProduct(rows, width, d_residual, kColumnGroupStride, s.v_new_t, plan.ldc, s.sums.attend + rows * plan.ldc,
                   plan.ldc, true);
  }
  float product = 0;
  for (std::int64_t i = 0; i < plan.Kp; ++i)
    product += Dot(s.state + i * kColumnGroupStride, d_state + i * kColumnGroupStride, width);
  *s.sums.state += product;

  StateGradient(plan, chunk, erases, in.scale, s.packing, d_out, d_state, width);
}

void BackwardUnit(const ChunkPlan& plan, const RecurrenceBackward& args, const BackwardMemory& work,
                  const ConstTensorView& chunk_states, const ChunkUnit& unit, std::byte* memory) {
  const RecurrenceLayout& at = plan.at;
  BumpAllocator allocator(memory);
  BackwardScratch s(plan, allocator);
  const InRows v_rows = at.rows(args.in.v, unit.sequence, unit.head);
  const InRows do_rows = at.rows(args.d_o, unit.sequence, unit.head);
  const OutRows dv_rows = at.rows(args.dv, unit.sequence, unit.head);
  const std::int64_t state_size = plan.Kp * kColumnGroupStride;
  const std::int64_t first_chunk = at.first_chunk(unit.sequence);

  for (std::int64_t group = unit.group_begin; group < unit.group_end; ++group) {
    LoadState(state_of(args.d_ht, unit.sequence, unit.head), at.K, plan.Kp, group * kColumnGroup, plan.width(group),
              plan.padded_width(group), s.d_state + (group - unit.group_begin) * state_size, kColumnGroupStride);
  }
  for (std::int64_t c = at.chunks(unit.sequence) - 1; c >= 0; --c) {
    const std::int64_t first = c * plan.C;
    Prepare(plan, args.in, unit.sequence, unit.head, first, s.chunk);
    std::fill_n(s.sums.q_and_x, s.sums.size, 0.0F);
    for (std::int64_t group = unit.group_begin; group < unit.group_end; ++group) {
      const std::int64_t width = plan.padded_width(group);
      LoadState(state_of(chunk_states, first_chunk + c, unit.head), at.K, plan.Kp, group * kColumnGroup,
                plan.width(group), width, s.state, kColumnGroupStride);
      LoadRows(v_rows, first, s.chunk, group * kColumnGroup, plan.width(group), width, s.values);
      LoadRows(do_rows, first, s.chunk, group * kColumnGroup, plan.width(group), width, s.d_out);
      BackwardGroup(plan, args, s.chunk, dv_rows, first, group, s, s.d_state + (group - unit.group_begin) * state_size);
    }
    if (plan.split) {
      const std::int64_t slot = ((first_chunk + c) * at.HV + unit.head) * plan.groups + unit.group_begin;
      std::copy_n(s.sums.q_and_x, s.sums.size, work.sums + slot * work.sums_size);
    } else {
      ChunkGradients(plan, args, work, unit.sequence, unit.head, first, s);
    }
  }
  for (std::int64_t group = unit.group_begin; group < unit.group_end; ++group) {
    StoreState(state_of(args.dh0, unit.sequence, unit.head), at.K, group * kColumnGroup, plan.width(group),
               s.d_state + (group - unit.group_begin) * state_size, kColumnGroupStride);
  }
}

// The gradient that the outputs of all chunks of one unit send to its entry state.
void EntryGradientUnit(const ChunkPlan& plan, const RecurrenceEntryGradient& args, const ChunkUnit& unit,
                       std::byte* memory) {
  const RecurrenceLayout& at = plan.at;
  const bool erases = traits_of(args.in.rule).erases;
  BumpAllocator allocator(memory);
  BackwardScratch s(plan, allocator);
  const InRows do_rows = at.rows(args.d_o, unit.sequence, unit.head);
  const std::int64_t state_size = plan.Kp * kColumnGroupStride;
  std::fill_n(s.d_state, (unit.group_end - unit.group_begin) * state_size, 0.0F);
  for (std::int64_t c = at.chunks(unit.sequence) - 1; c >= 0; --c) {
    const std::int64_t first = c * plan.C;
    Prepare(plan, args.in, unit.sequence, unit.head, first, s.chunk);
    for (std::int64_t group = unit.group_begin; group < unit.group_end; ++group) {
      const std::int64_t width = plan.padded_width(group);
      float* d_state = s.d_state + (group - unit.group_begin) * state_size;
      LoadRows(do_rows, first, s.chunk, group * kColumnGroup, plan.width(group), width, s.d_out);
      if (erases) {
        ResidualGradient(plan, s.chunk, erases, s.packing, s.d_out, d_state,
                         s.d_out + s.chunk.padded * kColumnGroupStride, width);
      }
      StateGradient(plan, s.chunk, erases, args.in.scale, s.packing, s.d_out, d_state, width);
    }
  }
  for (std::int64_t group = unit.group_begin; group < unit.group_end; ++group) {
    StoreState(state_of(args.dn, unit.sequence, unit.head), at.K, group * kColumnGroup, plan.width(group),
               s.d_state + (group - unit.group_begin) * state_size, kColumnGroupStride);
  }
}

// Where the groups of a head had units of their own: adds up their sums in order, then the gradients of the chunk.
void SplitChunkGradients(const ChunkPlan& plan, const RecurrenceBackward& args, const BackwardMemory& work,
                         std::int64_t sequence, std::int64_t head, std::int64_t c, std::byte* memory) {
  BumpAllocator allocator(memory);
  BackwardScratch s(plan, allocator);
  Prepare(plan, args.in, sequence, head, c * plan.C, s.chunk);
  std::fill_n(s.sums.q_and_x, s.sums.size, 0.0F);
  const std::int64_t slot = ((plan.at.first_chunk(sequence) + c) * plan.at.HV + head) * plan.groups;
  for (std::int64_t group = 0; group < plan.groups; ++group) {
    Combine(1.0F, s.sums.q_and_x, 1.0F, work.sums + (slot + group) * work.sums_size, s.sums.q_and_x, s.sums.size);
  }
  ChunkGradients(plan, args, work, sequence, head, c * plan.C, s);
}

// dq and dk of a query/key head that several value heads share: their sum, in order, for tokens [begin, end).
void SumSharedHeads(const ChunkPlan& plan, const TensorView& per_head, const TensorView& out, std::int64_t b,
                    std::int64_t t, std::byte* memory) {
  const RecurrenceLayout& at = plan.at;
  auto* row = reinterpret_cast<float*>(memory);
  const std::int64_t shared = at.HV / at.H;
  const auto size = static_cast<std::int64_t>(size_of(out.dtype));
  for (std::int64_t h = 0; h < at.H; ++h) {
    const auto* in = reinterpret_cast<const float*>(per_head.data) + ((b * at.T + t) * at.HV + h * shared) * at.K;
    for (std::int64_t i = 0; i < at.K; ++i) {
      float sum = 0;
      for (std::int64_t j = 0; j < shared; ++j) sum += in[j * at.K + i];
      row[i] = sum;
    }
    StoreRow(out.data + (b * out.step(0) + t * out.step(1) + h * out.step(2)) * size, out.dtype, out.step(3), at.K,
             row);
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(ForwardUnit);
HWY_EXPORT(BackwardUnit);
HWY_EXPORT(EntryGradientUnit);
HWY_EXPORT(SplitChunkGradients);
HWY_EXPORT(SumSharedHeads);

namespace {

std::size_t forward_scratch_bytes(const ChunkPlan& plan) {
  BumpAllocator counter(nullptr);
  (void)ForwardScratch(plan, counter);
  return counter.used();
}

std::size_t backward_scratch_bytes(const ChunkPlan& plan) {
  BumpAllocator counter(nullptr);
  (void)BackwardScratch(plan, counter);
  return counter.used();
}

ChunkPlan entry_gradient_plan(const Device& device, const RecurrenceEntryGradient& args) {
  return {device, args.in, {.form = Form::chunk, .chunk = kDefaultChunk, .bf16_products = false}};
}

}  // namespace

std::size_t recurrence_chunk_workspace(const Device& device, const RecurrenceForward& args) {
  const ChunkPlan plan(device, args.in, args.run);
  return forward_scratch_bytes(plan) * static_cast<std::size_t>(plan.threads);
}

std::size_t recurrence_chunk_workspace(const Device& device, const RecurrenceBackward& args) {
  return BackwardMemory(ChunkPlan(device, args.in, args.run), args, nullptr).total;
}

void recurrence_chunk_forward(const Device& device, const RecurrenceForward& args, std::span<std::byte> workspace) {
  const ChunkPlan plan(device, args.in, args.run);
  const std::size_t scratch = forward_scratch_bytes(plan);
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardUnit);
  parallel_for(plan.units(), plan.threads, [&](std::int64_t index, int worker) {
    run(plan, args.in, args.o, args.ht, args.chunk_states, unit_of(plan, index),
        workspace.data() + static_cast<std::size_t>(worker) * scratch);
  });
}

void recurrence_chunk_backward(const Device& device, const RecurrenceBackward& args, std::span<std::byte> workspace) {
  const ChunkPlan plan(device, args.in, args.run);
  const BackwardMemory work(plan, args, workspace.data());
  const auto scratch_of = [&](int worker) {
    return work.scratch + static_cast<std::size_t>(worker) * work.scratch_bytes;
  };
  const auto forward = HWY_DYNAMIC_DISPATCH(ForwardUnit);
  const auto backward = HWY_DYNAMIC_DISPATCH(BackwardUnit);
  const auto gradients = HWY_DYNAMIC_DISPATCH(SplitChunkGradients);
  const auto sum_heads = HWY_DYNAMIC_DISPATCH(SumSharedHeads);

  parallel_for(plan.units(), plan.threads, [&](std::int64_t index, int worker) {
    const ChunkUnit unit = unit_of(plan, index);
    if (!args.chunk_states) forward(plan, args.in, {}, {}, work.chunk_states, unit, scratch_of(worker));
    const ConstTensorView states = args.chunk_states ? args.chunk_states : ConstTensorView(work.chunk_states);
    backward(plan, args, work, states, unit, scratch_of(worker));
  });
  if (plan.split) {
    for (std::int64_t n = 0; n < plan.at.N; ++n) {
      parallel_for(plan.at.chunks(n) * plan.at.HV, plan.threads, [&](std::int64_t index, int worker) {
        gradients(plan, args, work, n, index % plan.at.HV, index / plan.at.HV, scratch_of(worker));
      });
    }
  }
  if (work.dq_heads) {
    parallel_for(plan.at.B * plan.at.T, plan.threads, [&](std::int64_t index, int worker) {
      sum_heads(plan, work.dq_heads, args.dq, index / plan.at.T, index % plan.at.T, scratch_of(worker));
      sum_heads(plan, work.dk_heads, args.dk, index / plan.at.T, index % plan.at.T, scratch_of(worker));
    });
  }
}

std::size_t recurrence_entry_gradient_workspace(const Device& device, const RecurrenceEntryGradient& args) {
  const ChunkPlan plan = entry_gradient_plan(device, args);
  return backward_scratch_bytes(plan) * static_cast<std::size_t>(plan.threads);
}

void recurrence_entry_gradient(const Device& device, const RecurrenceEntryGradient& args,
                               std::span<std::byte> workspace) {
  const ChunkPlan plan = entry_gradient_plan(device, args);
  const std::size_t scratch = backward_scratch_bytes(plan);
  const auto run = HWY_DYNAMIC_DISPATCH(EntryGradientUnit);
  parallel_for(plan.units(), plan.threads, [&](std::int64_t index, int worker) {
    run(plan, args, unit_of(plan, index), workspace.data() + static_cast<std::size_t>(worker) * scratch);
  });
}

}  // namespace qdelta::cpu
#endif
