// The C interface of the recurrence: turns DLPack tensors into views, and calls the kernels.
#include <vector>

#include "capi/dlpack_view.h"
#include "capi/options.h"
#include "capi/status.h"
#include "kernels/caller_stream.h"

using namespace qdelta;

namespace {

constexpr DLDevice kHost{kDLCPU, 0};

// Holds the offsets, which the views of the inputs point into.
struct Inputs {
  CallOptions options;
  std::vector<std::int64_t> offsets;
  RecurrenceInputs in;

  Inputs(const qdelta_options* given, const qdelta_inputs* c) : options(given) {
    require(c != nullptr, "in is NULL");
    in.rule = options.rule();
    in.qk_l2norm = options.qk_l2norm();
    in.q = view(c->q, "q");
    in.k = view(c->k, "k");
    in.v = view(c->v, "v");
    in.g = view(c->g, "g");
    in.beta = view(c->beta, "beta");
    in.lambda = view(c->lambda, "lambda");
    in.h0 = view(c->h0, "h0");
    in.scale = options.scale(in.q, 3);
    if (c->cu_seqlens != nullptr) {
      offsets = integers_of(view_of(c->cu_seqlens, "cu_seqlens", kHost), "cu_seqlens");
      require(!offsets.empty(), "cu_seqlens is empty, expected N + 1 offsets");
      in.cu_seqlens = offsets;
    }
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  [[nodiscard]] TensorView view(const DLTensor* tensor, const char* name) const {
    return view_of(tensor, name, options.dl_device());
  }
};

RecurrenceForward forward_args(const Inputs& inputs, const qdelta_outputs* out) {
  require(out != nullptr, "out is NULL");
  RecurrenceForward args;
  args.in = inputs.in;
  args.o = inputs.view(out->o, "o");
  args.ht = inputs.view(out->ht, "ht");
  args.chunk_states = inputs.view(out->chunk_states, "chunk_states");
  args.saved = inputs.options.saved();
  args.run = inputs.options.execution();
  return args;
}

RecurrenceBackward backward_args(const Inputs& inputs, const qdelta_output_gradients* d_out,
                                 const qdelta_input_gradients* d_in) {
  require(d_out != nullptr, "d_out is NULL");
  require(d_in != nullptr, "d_in is NULL");
  RecurrenceBackward args;
  args.in = inputs.in;
  args.d_o = inputs.view(d_out->d_o, "d_o");
  args.d_ht = inputs.view(d_out->d_ht, "d_ht");
  args.chunk_states = inputs.view(d_out->chunk_states, "chunk_states");
  args.saved = inputs.options.saved();
  args.dq = inputs.view(d_in->dq, "dq");
  args.dk = inputs.view(d_in->dk, "dk");
  args.dv = inputs.view(d_in->dv, "dv");
  args.dg = inputs.view(d_in->dg, "dg");
  args.dbeta = inputs.view(d_in->dbeta, "dbeta");
  args.dlambda = inputs.view(d_in->dlambda, "dlambda");
  args.dh0 = inputs.view(d_in->dh0, "dh0");
  args.run = inputs.options.execution();
  return args;
}

}  // namespace

qdelta_status qdelta_forward(const qdelta_options* options, const qdelta_inputs* in, const qdelta_outputs* out) {
  return guarded([&] {
    const Inputs inputs(options, in);
    const Device& device = inputs.options.device();
    const RecurrenceForward args = forward_args(inputs, out);
    const CurrentGpu current(device);
    inputs.options.with_workspace([&](Workspace& workspace) { recurrence_forward(device, args, workspace); });
  });
}

qdelta_status qdelta_forward_workspace(const qdelta_options* options, const qdelta_inputs* in,
                                       const qdelta_outputs* out, uint64_t* bytes) {
  return guarded([&] {
    require(bytes != nullptr, "bytes is NULL");
    const Inputs inputs(options, in);
    *bytes = recurrence_workspace(inputs.options.device(), forward_args(inputs, out));
  });
}

qdelta_status qdelta_backward(const qdelta_options* options, const qdelta_inputs* in,
                              const qdelta_output_gradients* d_out, const qdelta_input_gradients* d_in) {
  return guarded([&] {
    const Inputs inputs(options, in);
    const Device& device = inputs.options.device();
    const RecurrenceBackward args = backward_args(inputs, d_out, d_in);
    const CurrentGpu current(device);
    inputs.options.with_workspace([&](Workspace& workspace) { recurrence_backward(device, args, workspace); });
  });
}

qdelta_status qdelta_backward_workspace(const qdelta_options* options, const qdelta_inputs* in,
                                        const qdelta_output_gradients* d_out, const qdelta_input_gradients* d_in,
                                        uint64_t* bytes) {
  return guarded([&] {
    require(bytes != nullptr, "bytes is NULL");
    const Inputs inputs(options, in);
    *bytes = recurrence_workspace(inputs.options.device(), backward_args(inputs, d_out, d_in));
  });
}

qdelta_status qdelta_saved_size(const qdelta_options* options, const qdelta_inputs* in, uint64_t* bytes) {
  return guarded([&] {
    require(bytes != nullptr, "bytes is NULL");
    const Inputs inputs(options, in);
    const std::int64_t chunks = recurrence_chunk_count(inputs.in, inputs.options.execution());
    const ConstTensorView& v = inputs.in.v;
    *bytes = recurrence_saved_bytes(inputs.options.device(), inputs.in.rule, chunks * v.extent(2), v.extent(3));
  });
}

int64_t qdelta_chunk_count(const qdelta_options* options, const qdelta_inputs* in) {
  int64_t count = -1;
  guarded([&] {
    const Inputs inputs(options, in);
    count = recurrence_chunk_count(inputs.in, inputs.options.execution());
  });
  return count;
}

qdelta_status qdelta_step(const qdelta_options* options, const qdelta_step_arguments* arguments) {
  return guarded([&] {
    const CallOptions call(options);
    require(arguments != nullptr, "arguments is NULL");
    const auto view = [&](const DLTensor* tensor, const char* name) { return view_of(tensor, name, call.dl_device()); };
    RecurrenceStep args;
    args.rule = call.rule();
    args.qk_l2norm = call.qk_l2norm();
    args.q = view(arguments->q, "q");
    args.k = view(arguments->k, "k");
    args.v = view(arguments->v, "v");
    args.g = view(arguments->g, "g");
    args.beta = view(arguments->beta, "beta");
    args.lambda = view(arguments->lambda, "lambda");
    args.states = view(arguments->states, "states");
    args.index = view(arguments->index, "index");
    args.o = view(arguments->o, "o");
    args.scale = call.scale(args.q, 2);
    const CurrentGpu current(call.device());
    call.with_workspace([&](Workspace& workspace) { recurrence_step(call.device(), args, workspace); });
  });
}

const char* qdelta_rule_name(qdelta_rule rule) {
  if (rule < 0 || static_cast<std::size_t>(rule) >= kRuleCount) return nullptr;
  return kRuleTraits[static_cast<std::size_t>(rule)].name.data();  // a literal, so it ends in a zero
}

qdelta_status qdelta_rule_from_name(const char* name, qdelta_rule* rule) {
  return guarded([&] {
    require(name != nullptr && rule != nullptr, "name and rule must not be NULL");
    const auto found = rule_from_name(name);
    require(found.has_value(), "'{}' is no rule", name);
    *rule = static_cast<qdelta_rule>(*found);
  });
}
