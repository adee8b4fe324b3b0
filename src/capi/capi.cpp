// The C interface: checks pointers, turns DLPack tensors into views and exceptions into status codes.
#include <cmath>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "capi/dlpack_view.h"
#include "kernels/recurrence.h"
#include "qdelta/qdelta.h"

using namespace qdelta;

static_assert(static_cast<int>(Status::internal) == QDELTA_INTERNAL && static_cast<int>(Status::io) == QDELTA_IO);
static_assert(static_cast<int>(Rule::q_delta) == QDELTA_Q_DELTA && static_cast<int>(Rule::linear) == QDELTA_LINEAR);
static_assert(static_cast<int>(Form::oracle) == QDELTA_ORACLE && static_cast<int>(Form::automatic) == QDELTA_AUTO);
static_assert(kRuleCount == QDELTA_Q_DELTA + 1);

namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

qdelta_status remember(Status status, const char* message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error().clear();  // no memory even for the message
  }
  return static_cast<qdelta_status>(status);
}

// Runs a call's body; nothing may be thrown into C.
template <class Body>
qdelta_status guarded(const Body& body) noexcept {
  try {
    body();
    return QDELTA_OK;
  } catch (const Error& error) {
    return remember(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return remember(Status::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    return remember(Status::internal, error.what());
  } catch (...) {
    return remember(Status::internal, "unknown error");
  }
}

// Scratch memory that a thread keeps from call to call.
Workspace& thread_workspace() {
  thread_local Workspace workspace{Device{}};
  return workspace;
}

// What C put into an enumeration, which may be any number: to load it as one of ours would be undefined.
template <class Enum>
int number_of(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number = 0;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

void check_options(const qdelta_options* options) {
  require(options != nullptr, "options is NULL; set one up with qdelta_options_init");
  require(options->struct_size == sizeof(qdelta_options),
          "options.struct_size is {}, expected {}; set it up with qdelta_options_init", options->struct_size,
          sizeof(qdelta_options));
  const int rule = number_of(options->rule);
  const int form = number_of(options->form);
  require(rule >= 0 && static_cast<std::size_t>(rule) < kRuleCount, "options.rule is {}, which is no rule", rule);
  require(form >= QDELTA_CHUNK && form <= QDELTA_AUTO, "options.form is {}, which is no form", form);
}

Device device_of(const qdelta_options& options) { return {.threads = options.threads}; }

Execution execution_of(const qdelta_options& options) {
  return {.form = static_cast<Form>(options.form), .chunk = options.chunk, .bf16_products = options.f32_products == 0};
}

// `key_axis` is the axis of q that has extent K.
float scale_of(const qdelta_options& options, const ConstTensorView& q, int key_axis) {
  if (options.scale != 0.0F || !q || q.shape.rank <= key_axis) return options.scale;
  return 1.0F / std::sqrt(static_cast<float>(q.extent(key_axis)));
}

// Holds the offsets, which the views of the inputs point into.
struct Inputs {
  std::vector<std::int64_t> offsets;
  RecurrenceInputs in;

  Inputs(const qdelta_options* options, const qdelta_inputs* c) {
    check_options(options);
    require(c != nullptr, "in is NULL");
    in.rule = static_cast<Rule>(options->rule);
    in.qk_l2norm = options->qk_l2norm != 0;
    in.q = view_of(c->q, "q");
    in.k = view_of(c->k, "k");
    in.v = view_of(c->v, "v");
    in.g = view_of(c->g, "g");
    in.beta = view_of(c->beta, "beta");
    in.lambda = view_of(c->lambda, "lambda");
    in.h0 = view_of(c->h0, "h0");
    in.scale = scale_of(*options, in.q, 3);
    if (c->cu_seqlens != nullptr) {
      offsets = integers_of(view_of(c->cu_seqlens, "cu_seqlens"), "cu_seqlens");
      require(!offsets.empty(), "cu_seqlens is empty, expected N + 1 offsets");
      in.cu_seqlens = offsets;
    }
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;
};

}  // namespace

void qdelta_options_init(qdelta_options* options) {
  if (options == nullptr) return;
  *options = qdelta_options{};
  options->struct_size = sizeof(qdelta_options);
  options->rule = QDELTA_Q_DELTA;
  options->form = QDELTA_AUTO;
}

qdelta_status qdelta_forward(const qdelta_options* options, const qdelta_inputs* in, const qdelta_outputs* out) {
  return guarded([&] {
    const Inputs inputs(options, in);
    require(out != nullptr, "out is NULL");
    RecurrenceForward args;
    args.in = inputs.in;
    args.o = view_of(out->o, "o");
    args.ht = view_of(out->ht, "ht");
    args.chunk_states = view_of(out->chunk_states, "chunk_states");
    args.run = execution_of(*options);
    recurrence_forward(device_of(*options), args, thread_workspace());
  });
}

qdelta_status qdelta_backward(const qdelta_options* options, const qdelta_inputs* in,
                              const qdelta_output_gradients* d_out, const qdelta_input_gradients* d_in) {
  return guarded([&] {
    const Inputs inputs(options, in);
    require(d_out != nullptr, "d_out is NULL");
    require(d_in != nullptr, "d_in is NULL");
    RecurrenceBackward args;
    args.in = inputs.in;
    args.d_o = view_of(d_out->d_o, "d_o");
    args.d_ht = view_of(d_out->d_ht, "d_ht");
    args.chunk_states = view_of(d_out->chunk_states, "chunk_states");
    args.dq = view_of(d_in->dq, "dq");
    args.dk = view_of(d_in->dk, "dk");
    args.dv = view_of(d_in->dv, "dv");
    args.dg = view_of(d_in->dg, "dg");
    args.dbeta = view_of(d_in->dbeta, "dbeta");
    args.dlambda = view_of(d_in->dlambda, "dlambda");
    args.dh0 = view_of(d_in->dh0, "dh0");
    args.run = execution_of(*options);
    recurrence_backward(device_of(*options), args, thread_workspace());
  });
}

qdelta_status qdelta_step(const qdelta_options* options, const qdelta_step_arguments* arguments) {
  return guarded([&] {
    check_options(options);
    require(arguments != nullptr, "arguments is NULL");
    RecurrenceStep args;
    args.rule = static_cast<Rule>(options->rule);
    args.qk_l2norm = options->qk_l2norm != 0;
    args.q = view_of(arguments->q, "q");
    args.k = view_of(arguments->k, "k");
    args.v = view_of(arguments->v, "v");
    args.g = view_of(arguments->g, "g");
    args.beta = view_of(arguments->beta, "beta");
    args.lambda = view_of(arguments->lambda, "lambda");
    args.states = view_of(arguments->states, "states");
    args.index = view_of(arguments->index, "index");
    args.o = view_of(arguments->o, "o");
    args.scale = scale_of(*options, args.q, 2);
    recurrence_step(device_of(*options), args, thread_workspace());
  });
}

int64_t qdelta_chunk_count(const qdelta_options* options, const qdelta_inputs* in) {
  int64_t count = -1;
  guarded([&] {
    const Inputs inputs(options, in);
    count = recurrence_chunk_count(inputs.in, execution_of(*options));
  });
  return count;
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

const char* qdelta_version(void) { return QDELTA_VERSION; }

const char* qdelta_status_text(qdelta_status status) {
  switch (status) {
    case QDELTA_OK:
      return "ok";
    case QDELTA_INVALID_ARGUMENT:
      return "invalid argument";
    case QDELTA_UNSUPPORTED:
      return "unsupported";
    case QDELTA_OUT_OF_MEMORY:
      return "out of memory";
    case QDELTA_IO:
      return "input/output error";
    case QDELTA_CORRUPT:
      return "corrupt file";
    case QDELTA_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

const char* qdelta_last_error(void) { return last_error().c_str(); }
