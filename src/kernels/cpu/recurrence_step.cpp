// The recurrence token by token, with a = exp(log_decay), x = k + mix q:
//
//   r = write v - erase a x^T S          o = scale (a q^T S + (q.k) r)          S <- a S + k r^T
//
// Both reads come from the state as it was, so one sweep gives x^T S and q^T S and a second one updates. The sweeps go
// over a few vectors of columns at a time: the second finds them in the nearest cache, and memory sees each state once.
#include "kernels/cpu/recurrence_step.h"

#include "core/threads.h"
#include "kernels/cpu/recurrence_chunk.h"

#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence_step.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/recurrence_chunk_prepare-inl.h"
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// One token of a head, packed.
struct Token {
  const float *q, *k, *x;
  float decay, erase, write, scale, q_dot_k;
  bool erases;
};

// NV vectors of columns of the state, in place; `v` in, `o` out.
template <int NV>
HWY_INLINE void StepColumns(const Token& token, std::int64_t K, float* HWY_RESTRICT state, std::int64_t ld,
                            const float* HWY_RESTRICT v, float* HWY_RESTRICT o) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Vector by_x[NV];
  Vector by_q[NV];
  for (int n = 0; n < NV; ++n) by_x[n] = by_q[n] = hn::Zero(d);
  if (token.erases) {
    for (std::int64_t i = 0; i < K; ++i) {
      const Vector x = hn::Set(d, token.x[i]);
      const Vector q = hn::Set(d, token.q[i]);
      for (int n = 0; n < NV; ++n) {
        const Vector s = hn::LoadU(d, state + i * ld + n * lanes);
        by_x[n] = hn::MulAdd(x, s, by_x[n]);
        by_q[n] = hn::MulAdd(q, s, by_q[n]);
      }
    }
  } else {
    for (std::int64_t i = 0; i < K; ++i) {
      const Vector q = hn::Set(d, token.q[i]);
      for (int n = 0; n < NV; ++n) by_q[n] = hn::MulAdd(q, hn::LoadU(d, state + i * ld + n * lanes), by_q[n]);
    }
  }
  Vector r[NV];
  for (int n = 0; n < NV; ++n) {
    r[n] = hn::Mul(hn::Set(d, token.write), hn::LoadU(d, v + n * lanes));
    if (token.erases) r[n] = hn::NegMulAdd(hn::Set(d, token.erase * token.decay), by_x[n], r[n]);
    const Vector sum = hn::MulAdd(hn::Set(d, token.q_dot_k), r[n], hn::Mul(hn::Set(d, token.decay), by_q[n]));
    hn::StoreU(hn::Mul(hn::Set(d, token.scale), sum), d, o + n * lanes);
  }
  const Vector decay = hn::Set(d, token.decay);
  for (std::int64_t i = 0; i < K; ++i) {
    const Vector k = hn::Set(d, token.k[i]);
    for (int n = 0; n < NV; ++n) {
      float* s = state + i * ld + n * lanes;
      hn::StoreU(hn::MulAdd(k, r[n], hn::Mul(decay, hn::LoadU(d, s))), d, s);
    }
  }
}

HWY_INLINE Token TokenAt(const ChunkPlan& plan, const RecurrenceInputs& in, const PreparedChunk& chunk,
                         std::int64_t r) {
  const float* q = chunk.q + r * plan.ldk;
  const float* k = chunk.k + r * plan.ldk;
  return {.q = q,
          .k = k,
          .x = chunk.x(plan.ldk) + r * plan.ldk,
          .decay = chunk.decay[r],
          .erase = chunk.erase[r],
          .write = chunk.write[r],
          .scale = in.scale,
          .q_dot_k = Dot(q, k, plan.Kp),
          .erases = traits_of(in.rule).erases};
}

// A group of padded columns: as many vectors at a time as keep the sweeps within the nearest cache.
HWY_INLINE void StepGroup(const Token& token, std::int64_t K, float* state, std::int64_t ld, std::int64_t width,
                          const float* v, float* o) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  std::int64_t n = 0;
  for (; n + 2 * lanes <= width; n += 2 * lanes) StepColumns<2>(token, K, state + n, ld, v + n, o + n);
  for (; n + lanes <= width; n += lanes) StepColumns<1>(token, K, state + n, ld, v + n, o + n);
}

// One row of a step: the columns of some groups of one state.
void StepUnit(const ChunkPlan& plan, const RecurrenceInputs& in, const StateOf<float>& state, const TensorView& o,
              const ChunkUnit& unit, std::byte* memory) {
  const RecurrenceLayout& at = plan.at;
  BumpAllocator allocator(memory);
  ForwardScratch s(plan, allocator);
  LoadTokens(plan, in, unit.sequence, unit.head, 0, s.chunk);
  const Token token = TokenAt(plan, in, s.chunk, 0);
  const InRows v_rows = at.rows(in.v, unit.sequence, unit.head);
  const OutRows o_rows = at.rows(o, unit.sequence, unit.head);
  const auto v_size = static_cast<std::int64_t>(size_of(v_rows.dtype));
  const auto o_size = static_cast<std::int64_t>(size_of(o_rows.dtype));
  for (std::int64_t group = unit.group_begin; group < unit.group_end; ++group) {
    const std::int64_t begin = group * kColumnGroup;
    const std::int64_t width = plan.width(group);
    const std::int64_t whole = width / kVectorPad * kVectorPad;
    LoadRow(v_rows.row(0) + begin * v_rows.step * v_size, v_rows.dtype, v_rows.step, width, s.v_new,
            plan.padded_width(group));
    StepGroup(token, at.K, state.data + begin, state.row_step, whole, s.v_new, s.reads);
    if (whole < width) {
      // The last few columns, by way of a padded copy.
      const StateOf<const float> in_state{state.data, state.row_step, 1};
      LoadState(in_state, at.K, at.K, begin + whole, width - whole, kVectorPad, s.state, kColumnGroupStride);
      StepGroup(token, at.K, s.state, kColumnGroupStride, kVectorPad, s.v_new + whole, s.reads + whole);
      StoreState(state, at.K, begin + whole, width - whole, s.state, kColumnGroupStride);
    }
    StoreRow(o_rows.row(0) + begin * o_rows.step * o_size, o_rows.dtype, o_rows.step, width, s.reads);
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(StepUnit);

namespace {

constexpr int kPackedTokens = 16;  // the least that a plan has room for

std::size_t scratch_bytes(const ChunkPlan& plan) {
  BumpAllocator counter(nullptr);
  (void)ForwardScratch(plan, counter);
  return counter.used();
}

// [R, heads(, width)] as [R, 1, heads(, width)]: a step is a sequence of one token for each row.
template <class Byte>
BasicView<Byte> with_time_axis(const BasicView<Byte>& view) {
  BasicView<Byte> out;
  if (!view) return out;
  out.data = view.data;
  out.dtype = view.dtype;
  out.shape.rank = view.shape.rank + 1;
  out.shape.extent = {view.extent(0), 1, view.extent(1), view.extent(2)};
  out.stride = {view.step(0), 0, view.step(1), view.step(2)};
  return out;
}

RecurrenceInputs as_sequences(const RecurrenceStep& args) {
  RecurrenceInputs in;
  in.rule = args.rule;
  in.scale = args.scale;
  in.qk_l2norm = args.qk_l2norm;
  in.q = with_time_axis(args.q);
  in.k = with_time_axis(args.k);
  in.v = with_time_axis(args.v);
  in.g = with_time_axis(args.g);
  in.beta = with_time_axis(args.beta);
  in.lambda = with_time_axis(args.lambda);
  return in;
}

constexpr Execution kTokenExecution{.form = Form::recurrent, .chunk = kPackedTokens, .bf16_products = false};

std::int64_t state_index(const ConstTensorView& index, std::int64_t row) {
  if (!index) return row;
  const std::int64_t at = row * index.step(0);
  return index.dtype == DType::i32 ? reinterpret_cast<const std::int32_t*>(index.data)[at]
                                   : reinterpret_cast<const std::int64_t*>(index.data)[at];
}

}  // namespace

std::size_t recurrence_step_workspace(const Device& device, const RecurrenceStep& args) {
  const ChunkPlan plan(device, as_sequences(args), kTokenExecution);
  return scratch_bytes(plan) * static_cast<std::size_t>(plan.threads);
}

void recurrence_step(const Device& device, const RecurrenceStep& args, std::span<std::byte> workspace) {
  require(!args.recent, "recent tokens are kept beside states on a GPU only");
  const RecurrenceInputs in = as_sequences(args);
  const ChunkPlan plan(device, in, kTokenExecution);
  const std::size_t scratch = scratch_bytes(plan);
  const auto run = HWY_DYNAMIC_DISPATCH(StepUnit);
  const TensorView o = with_time_axis(args.o);
  // A head stays with its thread from one step to the next, and so does its state with that core's cache.
  parallel_for_static(plan.units(), plan.threads, [&](std::int64_t index, int worker) {
    const ChunkUnit unit = unit_of(plan, index);
    run(plan, in, state_of(args.states, state_index(args.index, unit.sequence), unit.head), o, unit,
        workspace.data() + static_cast<std::size_t>(worker) * scratch);
  });
}

}  // namespace qdelta::cpu
#endif
