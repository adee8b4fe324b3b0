#include "core/threads.h"
#include "kernels/cpu/bf16_product.h"
#include "kernels/cpu/recurrence_chunk.h"

namespace qdelta::cpu {

bool wants_bf16_products(const RecurrenceInputs& in, const Execution& run) {
  return run.bf16_products && in.q.dtype == DType::bf16 && in.k.dtype == DType::bf16 && in.v.dtype == DType::bf16 &&
         bf16_product_available();
}

ChunkPlan::ChunkPlan(const Device& device, const RecurrenceInputs& in, const Execution& run)
    : at(in, run.chunk),
      C(at.chunk),
      Kp(round_up(std::max<std::int64_t>(at.K, 1), kVectorPad)),
      ldk(Kp + kVectorPad),
      ldc(C + kVectorPad),
      groups(ceil_div(at.V, kColumnGroup)),
      threads(thread_count(device.threads)),
      split(at.N * at.HV < 2 * std::int64_t{threads} && threads > 1 && groups > 1),
      bf16_products(wants_bf16_products(in, run)) {}

std::int64_t ChunkPlan::packing_bytes() const {
  if (!bf16_products) return 0;
  return std::max({bf16_product_scratch(2 * C, kColumnGroup, Kp), bf16_product_scratch(Kp, kColumnGroup, 2 * C),
                   bf16_product_scratch(2 * C, Kp, kColumnGroup)});
}

ChunkUnit unit_of(const ChunkPlan& plan, std::int64_t index) {
  const std::int64_t parts = plan.split ? plan.groups : 1;
  const std::int64_t head_index = index / parts;
  const std::int64_t part = index % parts;
  return {head_index / plan.at.HV, head_index % plan.at.HV, plan.split ? part : 0, plan.split ? part + 1 : plan.groups};
}

PreparedChunk::PreparedChunk(const ChunkPlan& plan, BumpAllocator& memory)
    : q(memory.take<float>(2 * plan.C * plan.ldk)),
      k(memory.take<float>(plan.C * plan.ldk)),
      kt(memory.take<float>(plan.Kp * plan.ldc)),
      products(memory.take<float>(2 * plan.C * plan.ldc)),
      gamma(memory.take<float>(plan.C * plan.ldc)),
      attend(memory.take<float>(plan.C * plan.ldc)),
      read(memory.take<float>(plan.C * plan.ldc)),
      correct(memory.take<float>(plan.C * plan.ldc)),
      decay(memory.take<float>(plan.C)),
      erase(memory.take<float>(plan.C)),
      mix(memory.take<float>(plan.C)),
      write(memory.take<float>(plan.C)),
      q_inverse_norm(memory.take<float>(plan.C)),
      k_inverse_norm(memory.take<float>(plan.C)),
      rule_in(memory.take<RuleInputs<float>>(plan.C)) {}

ForwardScratch::ForwardScratch(const ChunkPlan& plan, BumpAllocator& memory)
    : chunk(plan, memory),
      state(memory.take<float>((plan.split ? 1 : plan.groups) * plan.Kp * kColumnGroupStride)),
      reads(memory.take<float>(2 * plan.C * kColumnGroupStride)),
      v_new(memory.take<float>(plan.C * kColumnGroupStride)),
      packing(memory.take<std::byte>(plan.packing_bytes())) {}

ChunkSums::ChunkSums(const ChunkPlan& plan, BumpAllocator& memory)
    : q_and_x(memory.take<float>(2 * plan.C * plan.ldk)),
      k(memory.take<float>(plan.C * plan.ldk)),
      attend(memory.take<float>(2 * plan.C * plan.ldc)),
      write(memory.take<float>(plan.C)),
      state(memory.take<float>(kVectorPad)),
      size(3 * plan.C * plan.ldk + 2 * plan.C * plan.ldc + plan.C + kVectorPad) {}

BackwardScratch::BackwardScratch(const ChunkPlan& plan, BumpAllocator& memory)
    : chunk(plan, memory),
      sums(plan, memory),
      d_state(memory.take<float>((plan.split ? 1 : plan.groups) * plan.Kp * kColumnGroupStride)),
      state(memory.take<float>(plan.Kp * kColumnGroupStride)),
      state_t(memory.take<float>(kColumnGroup * plan.ldk)),
      d_state_t(memory.take<float>(kColumnGroup * plan.ldk)),
      values(memory.take<float>(plan.C * kColumnGroupStride)),
      v_new(memory.take<float>(plan.C * kColumnGroupStride)),
      v_new_t(memory.take<float>(kColumnGroup * plan.ldc)),
      d_out(memory.take<float>(2 * plan.C * kColumnGroupStride)),
      column_sums(memory.take<float>(plan.C)),
      packing(memory.take<std::byte>(plan.packing_bytes())) {}

BackwardMemory::BackwardMemory(const ChunkPlan& plan, const RecurrenceBackward& args, std::byte* base) {
  const RecurrenceLayout& at = plan.at;
  BumpAllocator memory(base);
  const auto floats = [&](const Shape& shape) {
    return TensorView(reinterpret_cast<std::byte*>(memory.take<float>(shape.elements())), DType::f32, shape);
  };
  if (!args.chunk_states) chunk_states = floats({at.total_chunks, at.HV, at.K, at.V});
  if (plan.split) {
    BumpAllocator counter(nullptr);
    sums_size = ChunkSums(plan, counter).size;
    sums = memory.take<float>(at.total_chunks * at.HV * plan.groups * sums_size);
  }
  if (at.HV != at.H) {
    dq_heads = floats({at.B, at.T, at.HV, at.K});
    dk_heads = floats({at.B, at.T, at.HV, at.K});
  }
  // The forward runs in the same space when the states have to be computed again.
  BumpAllocator forward_counter(nullptr);
  BumpAllocator backward_counter(nullptr);
  (void)ForwardScratch(plan, forward_counter);
  (void)BackwardScratch(plan, backward_counter);
  scratch_bytes = std::max(forward_counter.used(), backward_counter.used());
  scratch = memory.take<std::byte>(static_cast<std::int64_t>(scratch_bytes) * plan.threads);
  total = memory.used();
}

}  // namespace qdelta::cpu
