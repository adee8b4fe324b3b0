#include "kernels/recurrence_check.h"

#include <bitset>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "kernels/recurrence_layout.h"

namespace qdelta {
namespace {

void check_view(std::string_view name, const ConstTensorView& view, const Shape& expected, std::string_view axes,
                bool state) {
  require(static_cast<bool>(view), "{} {} is missing", name, axes);
  require(view.shape == expected, "{} has shape {}, expected {} = {}", name, view.shape.text(), axes, expected.text());
  if (state) {
    require(view.dtype == DType::f32, "{} is {}, but states are F32", name, name_of(view.dtype));
  } else {
    require(view.dtype == DType::f32 || view.dtype == DType::bf16, "{} is {}, expected F32 or BF16", name,
            name_of(view.dtype));
  }
}

// Whether no two elements share memory: each stride steps over all that the smaller ones reach. Slices and transposes
// of row-major tensors pass; a stride of 0 does not. Strides of what is written must: else threads race for an element.
bool elements_are_apart(const ConstTensorView& view) {
  std::int64_t reach = 0;  // of the axes so far, by rising stride
  std::int64_t before = -1;
  while (true) {
    std::int64_t stride = INT64_MAX;  // the smallest of the others
    std::int64_t span = 0;            // along it
    int axes = 0;
    for (int axis = 0; axis < view.shape.rank; ++axis) {
      if (view.extent(axis) == 0) return true;
      const std::int64_t step = std::abs(view.step(axis));
      if (view.extent(axis) == 1 || step <= before || step > stride) continue;
      axes = step == stride ? axes + 1 : 1;
      stride = step;
      span = (view.extent(axis) - 1) * step;
    }
    if (axes == 0) return true;
    if (axes > 1 || stride <= reach) return false;
    before = stride;
    reach += span;
  }
}

void check_output(std::string_view name, const ConstTensorView& view, const Shape& expected, std::string_view axes,
                  bool state) {
  check_view(name, view, expected, axes, state);
  require(elements_are_apart(view), "{} is written, but its strides put several elements in one place", name);
}

void check_optional_output(std::string_view name, const ConstTensorView& view, const Shape& expected,
                           std::string_view axes, bool state) {
  if (view) check_output(name, view, expected, axes, state);
}

void check_optional(std::string_view name, const ConstTensorView& view, const Shape& expected, std::string_view axes,
                    bool state) {
  if (view) check_view(name, view, expected, axes, state);
}

void check_rank(std::string_view name, const ConstTensorView& view, int rank, std::string_view axes) {
  require(static_cast<bool>(view), "{} {} is missing", name, axes);
  require(view.shape.rank == rank, "{} has shape {}, expected {}", name, view.shape.text(), axes);
}

void check_heads(std::int64_t H, std::int64_t HV) {
  require(H > 0, "q has no heads");
  require(HV > 0 && HV % H == 0, "v has {} heads, which is not a multiple of the {} heads of q and k", HV, H);
}

// Far more than any model has, and few enough that the bytes of states and scratch space can be counted.
void check_sizes(std::int64_t K, std::int64_t V, const Shape& states, std::string_view axes) {
  constexpr std::int64_t kWidest = std::int64_t{1} << 20U;
  require(K > 0, "q has width 0");
  require(K <= kWidest, "q has width {}, at most {} is supported", K, kWidest);
  require(V <= kWidest, "v has width {}, at most {} is supported", V, kWidest);
  require(states.countable(), "the states {} = {} have more elements than can be counted", axes, states.text());
}

std::int64_t state_at(const ConstTensorView& index, std::int64_t row) {
  const std::int64_t at = row * index.step(0);
  return index.dtype == DType::i32 ? reinterpret_cast<const std::int32_t*>(index.data)[at]
                                   : reinterpret_cast<const std::int64_t*>(index.data)[at];
}

// Every row has a state of the pool to itself: two rows on one state would race. A part of the pool at a time, so that
// nothing needs to be allocated. States without elements have nothing to race for, and any number of them may be named.
void check_index(const ConstTensorView& index, std::int64_t rows, const ConstTensorView& states) {
  const std::int64_t pool = states.extent(0);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t state = state_at(index, r);
    require(state >= 0 && state < pool, "index[{}] is {}, but there are {} states", r, state, pool);
  }
  if (states.shape.elements() == 0) return;
  constexpr std::int64_t kPart = std::int64_t{1} << 15;
  for (std::int64_t begin = 0; begin < pool; begin += kPart) {
    std::bitset<kPart> taken;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t state = state_at(index, r);
      if (state < begin || state >= begin + kPart) continue;
      const auto bit = static_cast<std::size_t>(state - begin);
      require(!taken[bit], "index names state {} twice", state);
      taken[bit] = true;
    }
  }
}

}  // namespace

void check(const RecurrenceInputs& in) {
  check_rank("q", in.q, 4, "[B, T, H, K]");
  check_rank("v", in.v, 4, "[B, T, HV, V]");
  if (!in.cu_seqlens.empty()) {
    require(in.q.extent(0) == 1, "with cu_seqlens the sequences are packed into one row, but q has batch {}",
            in.q.extent(0));
    require(in.cu_seqlens.front() == 0, "cu_seqlens starts with {}, expected 0", in.cu_seqlens.front());
    for (std::size_t i = 1; i < in.cu_seqlens.size(); ++i) {
      require(in.cu_seqlens[i] >= in.cu_seqlens[i - 1], "cu_seqlens decreases from {} to {} at entry {}",
              in.cu_seqlens[i - 1], in.cu_seqlens[i], i);
    }
    require(in.cu_seqlens.back() == in.q.extent(1), "cu_seqlens ends with {}, but there are {} tokens",
            in.cu_seqlens.back(), in.q.extent(1));
  }
  const RecurrenceLayout at(in, kDefaultChunk);
  check_heads(at.H, at.HV);
  check_sizes(at.K, at.V, {at.N, at.HV, at.K, at.V}, "[N, HV, K, V]");
  check_sizes(at.K, at.V, {at.total_chunks, at.HV, at.K, at.V}, "[chunks, HV, K, V]");
  require(std::isfinite(in.scale), "scale is {}", in.scale);
  check_view("q", in.q, {at.B, at.T, at.H, at.K}, "[B, T, H, K]", false);
  check_view("k", in.k, {at.B, at.T, at.H, at.K}, "[B, T, H, K]", false);
  check_view("v", in.v, {at.B, at.T, at.HV, at.V}, "[B, T, HV, V]", false);
  const Shape gates{at.B, at.T, at.HV};
  check_view("g", in.g, gates, "[B, T, HV]", false);
  const RuleTraits& traits = traits_of(in.rule);
  require(in.beta || !traits.reads_beta, "rule {} needs beta [B, T, HV]", traits.name);
  require(in.lambda || !traits.reads_lambda, "rule {} needs lambda [B, T, HV]", traits.name);
  check_optional("beta", in.beta, gates, "[B, T, HV]", false);
  check_optional("lambda", in.lambda, gates, "[B, T, HV]", false);
  check_optional("h0", in.h0, {at.N, at.HV, at.K, at.V}, "[N, HV, K, V]", true);
}

void check(const Device& device) {
  require(device.threads >= 0 && device.threads <= 4096, "threads is {}, expected 1 to 4096 (0 for all)",
          device.threads);
}

void check(const Execution& run) {
  require(run.chunk == 0 || run.chunk == 16 || run.chunk == 32 || run.chunk == 64 || run.chunk == 128,
          "chunk is {}, expected 16, 32, 64 or 128 (0 for the default)", run.chunk);
}

void check(const RecurrenceForward& args) {
  check(args.in);
  check(args.run);
  const RecurrenceLayout at(args.in, chunk_length(args.run));
  check_output("o", args.o, {at.B, at.T, at.HV, at.V}, "[B, T, HV, V]", false);
  check_optional_output("ht", args.ht, {at.N, at.HV, at.K, at.V}, "[N, HV, K, V]", true);
  check_optional_output("chunk_states", args.chunk_states, {at.total_chunks, at.HV, at.K, at.V}, "[chunks, HV, K, V]",
                        true);
  require(!args.chunk_states || args.run.form == Form::chunk || args.run.form == Form::automatic,
          "chunk_states are made by the chunk form only");
}

void check(const RecurrenceBackward& args) {
  check(args.in);
  check(args.run);
  const RecurrenceLayout at(args.in, chunk_length(args.run));
  const Shape gates{at.B, at.T, at.HV};
  const Shape states{at.N, at.HV, at.K, at.V};
  check_view("do", args.d_o, {at.B, at.T, at.HV, at.V}, "[B, T, HV, V]", false);
  check_optional("dht", args.d_ht, states, "[N, HV, K, V]", true);
  check_optional("chunk_states", args.chunk_states, {at.total_chunks, at.HV, at.K, at.V}, "[chunks, HV, K, V]", true);
  check_output("dq", args.dq, {at.B, at.T, at.H, at.K}, "[B, T, H, K]", false);
  check_output("dk", args.dk, {at.B, at.T, at.H, at.K}, "[B, T, H, K]", false);
  check_output("dv", args.dv, {at.B, at.T, at.HV, at.V}, "[B, T, HV, V]", false);
  check_output("dg", args.dg, gates, "[B, T, HV]", false);
  check_optional_output("dbeta", args.dbeta, gates, "[B, T, HV]", false);
  check_optional_output("dlambda", args.dlambda, gates, "[B, T, HV]", false);
  check_optional_output("dh0", args.dh0, states, "[N, HV, K, V]", true);
}

namespace {

// The shape of the states beside which they are kept.
void check_recent(const TensorView& recent, const Shape& states) {
  const Shape expected{states[0], states[1], recent_elements(states[2], states[3])};
  check_output("recent", recent, expected, "[P, HV, recent_elements(K, V)]", true);
  require(recent.step(2) == 1, "the rows of recent must be contiguous, but their stride is {}", recent.step(2));
}

}  // namespace

void check(const RecurrenceSettle& args) {
  check_rank("states", args.states, 4, "[R, HV, K, V]");
  check_output("states", args.states, args.states.shape, "[R, HV, K, V]", true);
  require(args.states.step(3) == 1 || args.states.extent(3) <= 1,
          "the rows of states must be contiguous, but their stride is {}", args.states.step(3));
  check_recent(args.recent, args.states.shape);
}

void check(const RecurrenceUndo& args) {
  check_rank("recent", args.recent, 3, "[R, HV, recent_elements(K, V)]");
  check_recent(args.recent, {args.recent.extent(0), args.recent.extent(1), args.K, args.V});
  require(args.tokens >= 0 && args.tokens <= kRecentTokens, "{} tokens to take back, expected 0 to {}", args.tokens,
          kRecentTokens);
}

void check(const RecurrenceStep& args) {
  check_rank("q", args.q, 3, "[R, H, K]");
  check_rank("v", args.v, 3, "[R, HV, V]");
  check_rank("states", args.states, 4, "[P, HV, K, V]");
  require(std::isfinite(args.scale), "scale is {}", args.scale);
  const std::int64_t R = args.q.extent(0);
  const std::int64_t H = args.q.extent(1);
  const std::int64_t K = args.q.extent(2);
  const std::int64_t HV = args.v.extent(1);
  const std::int64_t V = args.v.extent(2);
  const std::int64_t P = args.states.extent(0);
  check_heads(H, HV);
  check_sizes(K, V, {P, HV, K, V}, "[P, HV, K, V]");
  check_view("q", args.q, {R, H, K}, "[R, H, K]", false);
  check_view("k", args.k, {R, H, K}, "[R, H, K]", false);
  check_view("v", args.v, {R, HV, V}, "[R, HV, V]", false);
  check_view("g", args.g, {R, HV}, "[R, HV]", false);
  const RuleTraits& traits = traits_of(args.rule);
  require(args.beta || !traits.reads_beta, "rule {} needs beta [R, HV]", traits.name);
  require(args.lambda || !traits.reads_lambda, "rule {} needs lambda [R, HV]", traits.name);
  check_optional("beta", args.beta, {R, HV}, "[R, HV]", false);
  check_optional("lambda", args.lambda, {R, HV}, "[R, HV]", false);
  check_view("states", args.states, {P, HV, K, V}, "[P, HV, K, V]", true);
  require(args.states.step(3) == 1 || V <= 1, "the rows of states must be contiguous, but their stride is {}",
          args.states.step(3));
  check_output("states", args.states, {P, HV, K, V}, "[P, HV, K, V]", true);
  check_output("o", args.o, {R, HV, V}, "[R, HV, V]", false);
  if (args.recent) check_recent(args.recent, args.states.shape);
  if (!args.index) {
    require(R <= P, "there are {} rows but only {} states, and no index", R, P);
    return;
  }
  require(args.index.dtype == DType::i32 || args.index.dtype == DType::i64, "index is {}, expected I32 or I64",
          name_of(args.index.dtype));
  require(args.index.shape == Shape{R}, "index has shape {}, expected [R] = [{}]", args.index.shape.text(), R);
  check_index(args.index, R, args.states);
}

void check(const RecurrenceMap& args) {
  check(args.in);
  const RecurrenceLayout at(args.in, kDefaultChunk);
  check_sizes(at.K, at.K, {at.N, at.HV, at.K, at.K}, "[N, HV, K, K]");
  check_optional_output("m", args.m, {at.N, at.HV, at.K, at.K}, "[N, HV, K, K]", true);
  check_optional_output("n", args.n, {at.N, at.HV, at.K, at.V}, "[N, HV, K, V]", true);
}

void check(const RecurrenceEntryGradient& args) {
  check(args.in);
  const RecurrenceLayout at(args.in, kDefaultChunk);
  check_view("do", args.d_o, {at.B, at.T, at.HV, at.V}, "[B, T, HV, V]", false);
  check_output("dn", args.dn, {at.N, at.HV, at.K, at.V}, "[N, HV, K, V]", true);
}

void check(const RecurrenceMapProduct& args) {
  check_rank("state", args.state, 4, "[N, HV, K, V]");
  const Shape states = args.state.shape;
  const std::int64_t K = states[2];
  check_sizes(K, states[3], states, "[N, HV, K, V]");
  check_view("m", args.m, {states[0], states[1], K, K}, "[N, HV, K, K]", true);
  check_view("state", args.state, states, "[N, HV, K, V]", true);
  check_optional("add", args.add, states, "[N, HV, K, V]", true);
  check_output("out", args.out, states, "[N, HV, K, V]", true);
}

}  // namespace qdelta
