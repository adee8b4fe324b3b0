// The host's part of the chunkwise recurrence: checks, the division of the workspace, and the order of the launches.
#include "kernels/cuda/recurrence_chunk.h"

#include <algorithm>
#include <limits>

#include "core/memory.h"
#include "kernels/cuda/recurrence_chunk_args.h"
#include "kernels/recurrence_check.h"
#include "kernels/recurrence_layout.h"

namespace qdelta::cuda {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;

// ---------------------------------------------------------------------------------------------------------------------
// Checks, beyond those of all forms.

void check_contiguous(std::string_view name, const ConstTensorView& view) {
  if (!view) return;
  const int last = view.shape.rank - 1;
  require(view.step(last) == 1 || view.extent(last) <= 1,
          "the last axis of {} has stride {}; on the GPU it must be contiguous", name, view.step(last));
}

void check_chunk_states(const ConstTensorView& states, const RecurrenceLayout& at) {
  if (!states) return;
  const Shape expected{at.total_chunks, at.HV, at.K, at.V};
  require(states.shape == expected, "chunk_states has shape {}, expected [chunks, HV, K, V] = {}", states.shape.text(),
          expected.text());
  require(states.dtype == DType::f32 || states.dtype == DType::bf16, "chunk_states is {}, expected F32 or BF16",
          name_of(states.dtype));
  check_contiguous("chunk_states", states);
}

void check_inputs(const RecurrenceInputs& in, const Execution& run, const RecurrenceLayout& at) {
  require(run.form == Form::chunk, "on the GPU there is the chunk form, and the step");
  require(run.chunk == 0 || run.chunk == kChunk, "chunks of {} tokens; on the GPU they have {}", run.chunk, kChunk);
  require(at.K <= kWidestKeys, "K is {}; on the GPU it is at most {}", at.K, kWidestKeys);
  constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();
  const std::int64_t units = std::max(at.total_chunks, at.N) * at.HV;
  require(units <= kMostBlocks / std::max<std::int64_t>(1, ceil_div(at.V, kColumns)),
          "{} chunks of {} heads are too many for one launch", at.total_chunks, at.HV);
  check_contiguous("q", in.q);
  check_contiguous("k", in.k);
  check_contiguous("v", in.v);
  check_contiguous("h0", in.h0);
}

void check_call(const RecurrenceForward& args, const RecurrenceLayout& at) {
  RecurrenceForward common = args;
  common.chunk_states = {};  // may be bf16 here
  check(common);
  check_inputs(args.in, args.run, at);
  check_chunk_states(args.chunk_states, at);
  check_contiguous("o", args.o);
  check_contiguous("ht", args.ht);
}

void check_call(const RecurrenceBackward& args, const RecurrenceLayout& at) {
  RecurrenceBackward common = args;
  common.chunk_states = {};
  check(common);
  check_inputs(args.in, args.run, at);
  check_chunk_states(args.chunk_states, at);
  check_contiguous("do", args.d_o);
  check_contiguous("dht", args.d_ht);
  check_contiguous("dq", args.dq);
  check_contiguous("dk", args.dk);
  check_contiguous("dv", args.dv);
  check_contiguous("dh0", args.dh0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Views as the kernels take them.

// Whether every row starts at a multiple of 16 bytes and is a whole number of them. A stride does not matter along an
// axis of one.
template <class Byte>
bool in_vectors(const BasicView<Byte>& view, int outer_axes) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) return false;
  for (int axis = 0; axis < outer_axes; ++axis) {
    if (view.extent(axis) > 1 && view.step(axis) * size % 16 != 0) return false;
  }
  return view.shape.rank == outer_axes || view.extent(outer_axes) * size % 16 == 0;
}

template <class Byte>
TokensOf<Byte> tokens_of(const BasicView<Byte>& view) {
  if (!view) return {};
  return {view.data,
          view.step(0),
          view.step(1),
          view.step(2),
          view.dtype == DType::bf16,
          view.shape.rank == 4 && in_vectors(view, 3)};
}
template <class Byte>
StatesOf<Byte> states_of(const BasicView<Byte>& view) {
  if (!view) return {};
  return {view.data,
          view.step(0),
          view.step(1),
          view.step(2),
          static_cast<int>(view.extent(3)),
          view.dtype == DType::bf16,
          in_vectors(view, 3)};
}
StatesIn read_only(const StatesOut& states) {
  return {states.data, states.index, states.head, states.key, states.columns, states.bf16, states.vectors};
}

// ---------------------------------------------------------------------------------------------------------------------
// What both directions have in common.

struct Plan {
  RecurrenceLayout at;
  Dims dims;
  Chunks chunks;
  Prepared prepared;
  bool bf16;  // of the operands
  std::int64_t slots;
  const RuleTraits& traits;

  // `saved` has the matrices and factors; null: they are in the workspace.
  Plan(const RecurrenceInputs& in, bool bf16_operands, bool backward, BumpAllocator& memory, std::byte* saved)
      : at(in, kChunk), bf16(bf16_operands), slots(at.total_chunks * at.HV), traits(traits_of(in.rule)) {
    dims.heads = static_cast<int>(at.H);
    dims.value_heads = static_cast<int>(at.HV);
    dims.shared = static_cast<int>(at.HV / at.H);
    dims.keys = static_cast<int>(at.K);
    dims.values = static_cast<int>(at.V);
    dims.blocks = static_cast<int>(std::max<std::int64_t>(1, ceil_div(at.V, kColumns)));
    chunks.sequences = at.N;
    chunks.tokens = at.T;
    chunks.per_sequence = in.cu_seqlens.empty() ? ceil_div(at.T, kChunk) : 0;
    chunks.total = at.total_chunks;
    if (!in.cu_seqlens.empty()) {
      chunks.offsets = memory.take<std::int64_t>(at.N + 1);
      chunks.first = memory.take<std::int64_t>(at.N + 1);
      chunks.owner = memory.take<std::int32_t>(at.total_chunks);
    }
    BumpAllocator elsewhere(saved);
    prepared = take_prepared(traits, slots, backward || saved != nullptr, saved == nullptr ? memory : elsewhere);
  }

  // The parts of a matrix take as much as float32, in either type.
  static Prepared take_prepared(const RuleTraits& traits, std::int64_t slots, bool backward, BumpAllocator& memory) {
    Prepared prepared;
    prepared.attend = memory.take<float>(slots * kMatrix);
    if (traits.erases) prepared.inverse = memory.take<float>(slots * kMatrix);
    if (traits.erases && backward) prepared.read = memory.take<float>(slots * kMatrix);
    prepared.factors = memory.take<float>(slots * kFactors * kChunk);
    return prepared;
  }

  [[nodiscard]] std::int64_t operand_size() const { return bf16 ? 2 : 4; }
  // Operands for every chunk and head.
  [[nodiscard]] std::byte* operands(BumpAllocator& memory, std::int64_t each) const {
    return memory.take<std::byte>(slots * each * operand_size());
  }
  // [chunk, head, K, V] of the operands, V padded to whole blocks.
  [[nodiscard]] StatesOut operand_states(BumpAllocator& memory) const {
    const std::int64_t columns = std::int64_t{dims.blocks} * kColumns;
    return {operands(memory, at.K * columns),
            at.HV * at.K * columns,
            at.K * columns,
            columns,
            static_cast<int>(columns),
            bf16,
            true};
  }
  // [token][V] of the operands in parts, likewise padded.
  [[nodiscard]] std::byte* operand_rows(BumpAllocator& memory) const {
    return operands(memory, std::int64_t{matrix_parts(bf16)} * kChunk * dims.blocks * kColumns);
  }

  void locate(const Context& context, const RecurrenceInputs& in) const {
    if (chunks.offsets == nullptr) return;
    // From pageable memory: the call returns when it has been read.
    QDELTA_CUDA(cudaMemcpyAsync(const_cast<std::int64_t*>(chunks.offsets), in.cu_seqlens.data(),
                                in.cu_seqlens.size_bytes(), cudaMemcpyHostToDevice, context.stream()));
    launch_locate(context, chunks);
  }
  void prepare(const Context& context, const RecurrenceInputs& in) const {
    if (slots == 0) return;
    PrepareArgs args{dims,
                     chunks,
                     in.rule,
                     traits.erases,
                     in.qk_l2norm,
                     in.scale,
                     tokens_of(in.q),
                     tokens_of(in.k),
                     tokens_of(in.g),
                     tokens_of(in.beta),
                     tokens_of(in.lambda),
                     prepared};
    launch_prepare(context, args, bf16);
  }

  // The forward scan without outputs.
  [[nodiscard]] ForwardScanArgs forward_scan(const RecurrenceInputs& in) const {
    ForwardScanArgs args{};
    args.dims = dims;
    args.chunks = chunks;
    args.erases = traits.erases;
    args.mixes = traits.reads_lambda;
    args.q = tokens_of(in.q);
    args.k = tokens_of(in.k);
    args.v = tokens_of(in.v);
    args.prepared = prepared;
    args.entry = states_of(in.h0);
    return args;
  }
};

// Rows without the norm may have any length, and what they write may grow and cancel: there eight bits do not do.
bool bf16_operands(const RecurrenceInputs& in) {
  return in.qk_l2norm && in.q.dtype == DType::bf16 && in.k.dtype == DType::bf16 && in.v.dtype == DType::bf16;
}

void check_space(std::string_view name, std::span<const std::byte> space, std::size_t needed, std::size_t alignment) {
  require(space.size() >= needed, "{} has {} bytes, {} are needed", name, space.size(), needed);
  require(needed == 0 || reinterpret_cast<std::uintptr_t>(space.data()) % alignment == 0,
          "{} does not start at a multiple of {} bytes", name, alignment);
}
// Null: nothing is to be saved.
std::byte* saved_memory(const RecurrenceForward& args) { return args.saved.empty() ? nullptr : args.saved.data(); }
void check_workspace(std::span<const std::byte> workspace, std::size_t needed) {
  check_space("the workspace", workspace, needed, kWorkspaceAlignment);
}
void check_saved(std::span<const std::byte> saved, Rule rule, std::int64_t slots) {
  if (!saved.empty()) check_space("saved", saved, recurrence_chunk_saved_bytes(rule, slots), kAlignment);
}

// ---------------------------------------------------------------------------------------------------------------------
// What the backward needs beyond that.

struct BackwardPlan {
  static bool narrow(const RecurrenceBackward& args) { return bf16_operands(args.in) && args.d_o.dtype == DType::bf16; }
  // What the forward saved, where it worked with operands of the same type. It is only read.
  static std::byte* takes_over(const RecurrenceBackward& args) {
    const bool usable = !args.saved.empty() && narrow(args) == bf16_operands(args.in);
    return usable ? const_cast<std::byte*>(args.saved.data()) : nullptr;
  }

  BumpAllocator memory;
  Plan plan;
  StatesOut states;  // where the caller has none
  StatesOut d_states;
  std::byte *fresh, *d_residual;
  float* state_sums;
  bool in_parts;  // rows of dq and dk are finished by a launch of their own
  float *dq_parts = nullptr, *dk_parts = nullptr, *d_key_square = nullptr;

  BackwardPlan(const RecurrenceBackward& args, std::byte* base)
      : memory(base), plan(args.in, narrow(args), true, memory, takes_over(args)) {
    if (!args.chunk_states) states = plan.operand_states(memory);
    d_states = plan.operand_states(memory);
    fresh = plan.operand_rows(memory);
    d_residual = plan.operand_rows(memory);
    state_sums = memory.take<float>(plan.slots * plan.dims.blocks * kStrips);
    const RecurrenceLayout& at = plan.at;
    in_parts = at.HV != at.H || plan.dims.keys > gradient_keys(padded_keys(plan.dims.keys), plan.bf16);
    if (in_parts) {
      dq_parts = memory.take<float>(at.B * at.T * at.HV * at.K);
      dk_parts = memory.take<float>(at.B * at.T * at.HV * at.K);
      d_key_square = memory.take<float>(at.B * at.T * at.HV);
    }
  }
};

}  // namespace

void allow_shared_memory(const Context& context, const void* kernel, int bytes) {
  cudaFuncAttributes attributes{};
  QDELTA_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  const std::size_t needed = attributes.sharedSizeBytes + static_cast<std::size_t>(bytes);
  if (needed > static_cast<std::size_t>(context.shared_memory())) {
    fail(Status::unsupported,
         "the chunkwise recurrence needs {} bytes of shared memory at this width and type; GPU {} ({}) has {}", needed,
         context.ordinal(), context.name(), context.shared_memory());
  }
  QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

std::size_t recurrence_chunk_workspace(const RecurrenceForward& args) {
  check_call(args, RecurrenceLayout(args.in, kChunk));
  BumpAllocator memory(nullptr);
  (void)Plan(args.in, bf16_operands(args.in), false, memory, saved_memory(args));
  return memory.used();
}

std::size_t recurrence_chunk_saved_bytes(Rule rule, std::int64_t chunks) {
  BumpAllocator memory(nullptr);
  (void)Plan::take_prepared(traits_of(rule), chunks, true, memory);
  return memory.used();
}

std::size_t recurrence_chunk_workspace(const RecurrenceBackward& args) {
  check_call(args, RecurrenceLayout(args.in, kChunk));
  return BackwardPlan(args, nullptr).memory.used();
}

void recurrence_chunk_forward(const Context& context, const RecurrenceForward& args, std::span<std::byte> workspace) {
  check_workspace(workspace, recurrence_chunk_workspace(args));
  BumpAllocator memory(workspace.data());
  const Plan plan(args.in, bf16_operands(args.in), false, memory, saved_memory(args));
  check_saved(args.saved, args.in.rule, plan.slots);
  if (plan.at.N == 0) return;
  plan.locate(context, args.in);
  plan.prepare(context, args.in);
  ForwardScanArgs scan = plan.forward_scan(args.in);
  scan.chunk_states = states_of(args.chunk_states);
  scan.exit = states_of(args.ht);
  scan.o = tokens_of(args.o);
  launch_forward_scan(context, scan, plan.bf16);
}

void recurrence_chunk_backward(const Context& context, const RecurrenceBackward& args, std::span<std::byte> workspace) {
  check_workspace(workspace, recurrence_chunk_workspace(args));
  const BackwardPlan work(args, workspace.data());
  const Plan& plan = work.plan;
  check_saved(args.saved, args.in.rule, plan.slots);
  if (plan.at.N == 0) return;
  plan.locate(context, args.in);
  if (BackwardPlan::takes_over(args) == nullptr) plan.prepare(context, args.in);

  // The states and V', which is made on the way to them. Where the caller has the states, V' can be made from them: for
  // all chunks at once where sequences are too few to fill the GPU, or else on the way back.
  ForwardScanArgs forward = plan.forward_scan(args.in);
  const bool walks_fill = plan.at.N * plan.at.HV * plan.dims.blocks >= 2 * std::int64_t{context.sm_count()};
  const bool fresh_on_the_way_back = args.chunk_states && walks_fill;
  forward.fresh = work.fresh;
  if (!args.chunk_states) {
    forward.chunk_states = work.states;
  } else {
    forward.one_chunk = true;
    forward.entry = states_of(args.chunk_states);
  }
  if (plan.slots > 0 && !fresh_on_the_way_back) launch_forward_scan(context, forward, plan.bf16);

  BackwardScanArgs backward{};
  backward.dims = plan.dims;
  backward.chunks = plan.chunks;
  backward.erases = plan.traits.erases;
  backward.mixes = forward.mixes;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.d_o = tokens_of(args.d_o);
  backward.prepared = plan.prepared;
  backward.d_exit = states_of(args.d_ht);
  backward.d_entry = states_of(args.dh0);
  backward.d_states = work.d_states;
  backward.dv = tokens_of(args.dv);
  backward.fresh = fresh_on_the_way_back ? work.fresh : nullptr;
  backward.d_residual = work.d_residual;
  backward.states = args.chunk_states ? states_of(args.chunk_states) : read_only(work.states);
  backward.state_sums = work.state_sums;
  launch_backward_scan(context, backward, plan.bf16);
  if (plan.slots == 0) return;

  GradientsArgs gradients{};
  gradients.dims = plan.dims;
  gradients.chunks = plan.chunks;
  gradients.rule = args.in.rule;
  gradients.erases = plan.traits.erases;
  gradients.norm = args.in.qk_l2norm;
  gradients.adds_keys = rule_backward<float>(args.in.rule, {0, 1, 1, 1}, {1, 1, 1, 1}).k_dot_k != 0;
  gradients.scale = args.in.scale;
  gradients.q = forward.q;
  gradients.k = forward.k;
  gradients.v = forward.v;
  gradients.d_o = backward.d_o;
  gradients.prepared = plan.prepared;
  gradients.states = backward.states;
  gradients.d_states = read_only(work.d_states);
  gradients.fresh = work.fresh;
  gradients.d_residual = work.d_residual;
  gradients.state_sums = work.state_sums;
  gradients.dq = tokens_of(args.dq);
  gradients.dk = tokens_of(args.dk);
  gradients.dg = tokens_of(args.dg);
  gradients.dbeta = tokens_of(args.dbeta);
  gradients.dlambda = tokens_of(args.dlambda);
  gradients.dq_parts = work.dq_parts;
  gradients.dk_parts = work.dk_parts;
  gradients.d_key_square = work.d_key_square;
  gradients.batch = plan.at.B;
  gradients.tokens = plan.at.T;
  launch_gradients(context, gradients, plan.bf16);
  if (work.in_parts) launch_finish_rows(context, gradients);
}

}  // namespace qdelta::cuda
