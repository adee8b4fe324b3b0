// A problem for the kernels of the recurrence: tensors made at random, the double-precision answer to them, a way to
// run any form on them, and a comparison of the two.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "kernels/recurrence.h"
#include "rule/oracle.h"
#include "testing.h"

namespace qdelta::testing {

// ---------------------------------------------------------------------------------------------------------------------
// Problems.

struct CaseSpec {
  Rule rule = Rule::q_delta;
  std::int64_t batch = 1, tokens = 40, heads = 1, shared = 1;  // `shared` value heads for each query/key head
  std::int64_t key_dim = 16, value_dim = 16;
  std::vector<std::int64_t> cu_seqlens;
  float scale = 0.25F;
  bool qk_l2norm = true;
  bool h0 = true, d_ht = true;                // given?
  bool ht = true, dh0 = true, dgates = true;  // wanted? dgates: of beta and lambda
  bool unread_gates = true;                   // are gates given that the rule does not read?
  DType dtype = DType::f32;
  double lowest_g = -0.3, highest_beta = 1, highest_lambda = 1;

  [[nodiscard]] std::int64_t value_heads() const { return heads * shared; }
  [[nodiscard]] std::int64_t sequences() const {
    return cu_seqlens.empty() ? batch : static_cast<std::int64_t>(cu_seqlens.size()) - 1;
  }
  [[nodiscard]] Shape keys() const { return {batch, tokens, heads, key_dim}; }
  [[nodiscard]] Shape values() const { return {batch, tokens, value_heads(), value_dim}; }
  [[nodiscard]] Shape gates() const { return {batch, tokens, value_heads()}; }
  [[nodiscard]] Shape states() const { return {sequences(), value_heads(), key_dim, value_dim}; }
};

inline std::string describe(const CaseSpec& spec) {
  return fmt::format("{} {} B={} T={} H={} HV={} K={} V={} scale={} norm={} h0={} dht={} ht={} dh0={} cu_seqlens=[{}]",
                     traits_of(spec.rule).name, name_of(spec.dtype), spec.batch, spec.tokens, spec.heads,
                     spec.value_heads(), spec.key_dim, spec.value_dim, spec.scale, spec.qk_l2norm, spec.h0, spec.d_ht,
                     spec.ht, spec.dh0, fmt::join(spec.cu_seqlens, " "));
}

// The views of a problem's tensors, whatever holds them.
template <class Problem>
RecurrenceInputs inputs_of(const Problem& problem) {
  RecurrenceInputs in;
  in.rule = problem.spec.rule;
  in.scale = problem.spec.scale;
  in.qk_l2norm = problem.spec.qk_l2norm;
  in.q = problem.q.view();
  in.k = problem.k.view();
  in.v = problem.v.view();
  in.g = problem.g.view();
  in.beta = problem.beta.view();
  in.lambda = problem.lambda.view();
  in.h0 = problem.h0.view();
  in.cu_seqlens = problem.spec.cu_seqlens;
  return in;
}

// Everything that goes in. A missing tensor is a Tensor().
struct RecurrenceCase {
  CaseSpec spec;
  Tensor q, k, v, g, beta, lambda, h0, d_o, d_ht;

  [[nodiscard]] RecurrenceInputs inputs() const { return inputs_of(*this); }
};

// A case with its tensors somewhere else: each is a T, made of the tensor and of `where`.
template <class T, class Where>
struct CaseAt {
  CaseSpec spec;
  T q, k, v, g, beta, lambda, h0, d_o, d_ht;

  CaseAt(const RecurrenceCase& problem, const Where& where)
      : spec(problem.spec),
        q(problem.q, where),
        k(problem.k, where),
        v(problem.v, where),
        g(problem.g, where),
        beta(problem.beta, where),
        lambda(problem.lambda, where),
        h0(problem.h0, where),
        d_o(problem.d_o, where),
        d_ht(problem.d_ht, where) {}
};

inline Tensor random_tensor(Random& random, DType dtype, const Shape& shape, double low, double high) {
  Tensor tensor(DType::f32, shape);
  for (float& value : tensor.as<float>()) value = static_cast<float>(uniform(random, low, high));
  return dtype == DType::f32 ? std::move(tensor) : converted(tensor.view(), dtype);
}

inline RecurrenceCase random_case(const CaseSpec& spec, std::uint64_t seed) {
  Random random(seed);
  // Without the norm keys have a length of about one of their own, so that the state neither grows nor dies.
  const double key = spec.qk_l2norm ? 1.0 : std::sqrt(3.0 / static_cast<double>(spec.key_dim));
  const RuleTraits& traits = traits_of(spec.rule);
  RecurrenceCase made{spec, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  made.q = random_tensor(random, spec.dtype, spec.keys(), -key, key);
  made.k = random_tensor(random, spec.dtype, spec.keys(), -key, key);
  made.v = random_tensor(random, spec.dtype, spec.values(), -1, 1);
  made.g = random_tensor(random, spec.dtype, spec.gates(), spec.lowest_g, 0);
  if (spec.unread_gates || traits.reads_beta)
    made.beta = random_tensor(random, spec.dtype, spec.gates(), 0, spec.highest_beta);
  if (spec.unread_gates || traits.reads_lambda)
    made.lambda = random_tensor(random, spec.dtype, spec.gates(), 0, spec.highest_lambda);
  if (spec.h0) made.h0 = random_tensor(random, DType::f32, spec.states(), -1, 1);
  made.d_o = random_tensor(random, spec.dtype, spec.values(), -1, 1);
  if (spec.d_ht) made.d_ht = random_tensor(random, DType::f32, spec.states(), -1, 1);
  return made;
}

// The same problem with every input that may be bfloat16 rounded to it.
inline RecurrenceCase in_bfloat16(const RecurrenceCase& problem) {
  RecurrenceCase out{problem.spec, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  const auto as = [](DType dtype, const Tensor& tensor) {
    return tensor.data() == nullptr ? Tensor() : converted(tensor.view(), dtype);
  };
  const auto rounded = [&](const Tensor& tensor) { return as(DType::bf16, tensor); };
  out.spec.dtype = DType::bf16;
  out.q = rounded(problem.q);
  out.k = rounded(problem.k);
  out.v = rounded(problem.v);
  out.g = rounded(problem.g);
  out.beta = rounded(problem.beta);
  out.lambda = rounded(problem.lambda);
  out.d_o = rounded(problem.d_o);
  out.h0 = as(DType::f32, problem.h0);
  out.d_ht = as(DType::f32, problem.d_ht);
  return out;
}

// The part [begin, begin + count) of an axis.
template <class Byte>
BasicView<Byte> narrowed(BasicView<Byte> view, int axis, std::int64_t begin, std::int64_t count) {
  view.data += begin * view.step(axis) * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape.extent[static_cast<std::size_t>(axis)] = count;
  return view;
}

// ---------------------------------------------------------------------------------------------------------------------
// Results.

template <class Array>
struct Results {
  Array o, ht, dq, dk, dv, dg, dbeta, dlambda, dh0;

  using Field = std::pair<std::string_view, const Array*>;
  [[nodiscard]] std::array<Field, 9> fields() const {
    return {{{"o", &o},
             {"ht", &ht},
             {"dq", &dq},
             {"dk", &dk},
             {"dv", &dv},
             {"dg", &dg},
             {"dbeta", &dbeta},
             {"dlambda", &dlambda},
             {"dh0", &dh0}}};
  }
};
using Reference = Results<std::vector<double>>;

inline OracleShape oracle_shape(const CaseSpec& spec) {
  OracleShape shape;
  shape.offsets = spec.cu_seqlens;
  if (shape.offsets.empty()) {
    for (std::int64_t n = 0; n <= spec.batch; ++n) shape.offsets.push_back(n * spec.tokens);
  }
  shape.q_heads = spec.heads;
  shape.v_heads = spec.value_heads();
  shape.key_dim = spec.key_dim;
  shape.value_dim = spec.value_dim;
  shape.rule = spec.rule;
  shape.scale = spec.scale;
  shape.qk_l2norm = spec.qk_l2norm;
  return shape;
}

inline OracleInputs<double> oracle_inputs(const RecurrenceCase& problem) {
  OracleInputs<double> in{to_doubles(problem.q.view()),    to_doubles(problem.k.view()),
                          to_doubles(problem.v.view()),    to_doubles(problem.g.view()),
                          to_doubles(problem.beta.view()), to_doubles(problem.lambda.view()),
                          to_doubles(problem.h0.view())};
  in.beta.resize(in.g.size());
  in.lambda.resize(in.g.size());
  return in;
}

// The oracle's answer in double precision to exactly the numbers in the tensors.
inline Reference reference_of(const RecurrenceCase& problem) {
  const OracleShape shape = oracle_shape(problem.spec);
  const OracleInputs<double> in = oracle_inputs(problem);
  OracleOutputs<double> out = oracle_forward(shape, in);
  OracleInputs<double> grad =
      oracle_backward<double>(shape, in, {to_doubles(problem.d_o.view()), to_doubles(problem.d_ht.view())});
  return {std::move(out.o),  std::move(out.ht),    std::move(grad.q),      std::move(grad.k), std::move(grad.v),
          std::move(grad.g), std::move(grad.beta), std::move(grad.lambda), std::move(grad.h0)};
}

// ---------------------------------------------------------------------------------------------------------------------
// Runs.

// Exactly as much scratch space as was asked for, full of NaN, with a guarded end.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(std::size_t bytes) : size_(bytes), buffer_(bytes + kGuard, AlignedBuffer::Fill::none) {
    std::memset(buffer_.data(), 0xff, buffer_.size());
  }
  ~GuardedWorkspace() {
    for (std::size_t i = size_; i < buffer_.size(); ++i) {
      if (buffer_.data()[i] != std::byte{0xff}) {
        ADD_FAILURE() << "byte " << i - size_ << " beyond the workspace was written";
        break;
      }
    }
  }
  GuardedWorkspace(const GuardedWorkspace&) = delete;
  GuardedWorkspace& operator=(const GuardedWorkspace&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() { return {buffer_.data(), size_}; }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t size_;
  AlignedBuffer buffer_;
};

// How a test runs a case: the options of the call, and on how many threads.
struct RunOptions {
  Form form = Form::chunk;
  int chunk = 0;
  int threads = 0;
  bool bf16_products = true;

  [[nodiscard]] Execution execution() const { return {form, chunk, bf16_products}; }
  [[nodiscard]] Device device() const { return {.threads = threads}; }
};

inline constexpr Device kOneThread{.threads = 1};

inline void run(const RecurrenceForward& args, const Device& device) {
  GuardedWorkspace memory(recurrence_workspace(device, args));
  Workspace workspace(memory.bytes());
  recurrence_forward(device, args, workspace);
}
inline void run(const RecurrenceBackward& args, const Device& device) {
  GuardedWorkspace memory(recurrence_workspace(device, args));
  Workspace workspace(memory.bytes());
  recurrence_backward(device, args, workspace);
}
inline void run(const RecurrenceStep& args, const Device& device = kOneThread) {
  GuardedWorkspace memory(recurrence_workspace(device, args));
  Workspace workspace(memory.bytes());
  recurrence_step(device, args, workspace);
}

// Outputs start as NaN, so that an element nobody writes is seen.
inline Tensor nan_tensor(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  if (tensor.bytes() > 0) std::memset(tensor.data(), 0xff, tensor.bytes());
  return tensor;
}

inline Results<Tensor> make_results(const CaseSpec& spec) {
  Results<Tensor> out;
  out.o = nan_tensor(spec.dtype, spec.values());
  if (spec.ht) out.ht = nan_tensor(DType::f32, spec.states());
  out.dq = nan_tensor(spec.dtype, spec.keys());
  out.dk = nan_tensor(spec.dtype, spec.keys());
  out.dv = nan_tensor(spec.dtype, spec.values());
  out.dg = nan_tensor(spec.dtype, spec.gates());
  if (spec.dgates) out.dbeta = nan_tensor(spec.dtype, spec.gates());
  if (spec.dgates) out.dlambda = nan_tensor(spec.dtype, spec.gates());
  if (spec.dh0) out.dh0 = nan_tensor(DType::f32, spec.states());
  return out;
}

template <class Problem, class Out>
RecurrenceForward forward_arguments(const Problem& problem, Out& out, const RunOptions& how) {
  RecurrenceForward args;
  args.in = inputs_of(problem);
  args.o = out.o.view();
  args.ht = out.ht.view();
  args.run = how.execution();
  return args;
}

template <class Problem, class Out>
RecurrenceBackward backward_arguments(const Problem& problem, Out& out, const RunOptions& how) {
  RecurrenceBackward args;
  args.in = inputs_of(problem);
  args.d_o = problem.d_o.view();
  args.d_ht = problem.d_ht.view();
  args.dq = out.dq.view();
  args.dk = out.dk.view();
  args.dv = out.dv.view();
  args.dg = out.dg.view();
  args.dbeta = out.dbeta.view();
  args.dlambda = out.dlambda.view();
  args.dh0 = out.dh0.view();
  args.run = how.execution();
  return args;
}

// An axis dropped: the part of a view where it is `index`.
template <class Byte>
BasicView<Byte> selected(const BasicView<Byte>& view, int axis, std::int64_t index) {
  if (!view) return {};
  BasicView<Byte> out = narrowed(view, axis, index, 1);
  for (int i = axis; i + 1 < view.shape.rank; ++i) {
    out.shape.extent[static_cast<std::size_t>(i)] = view.extent(i + 1);
    out.stride[static_cast<std::size_t>(i)] = view.step(i + 1);
  }
  --out.shape.rank;
  return out;
}

// Token t of every row of the batch as one step. `o` is that of the whole sequence.
template <class Problem>
RecurrenceStep step_arguments(const Problem& problem, std::int64_t t, const TensorView& o, const TensorView& states) {
  RecurrenceStep args;
  args.rule = problem.spec.rule;
  args.scale = problem.spec.scale;
  args.qk_l2norm = problem.spec.qk_l2norm;
  args.q = selected(problem.q.view(), 1, t);
  args.k = selected(problem.k.view(), 1, t);
  args.v = selected(problem.v.view(), 1, t);
  args.g = selected(problem.g.view(), 1, t);
  args.beta = selected(problem.beta.view(), 1, t);
  args.lambda = selected(problem.lambda.view(), 1, t);
  args.o = selected(o, 1, t);
  args.states = states;
  return args;
}

inline Results<Tensor> run_both(const RecurrenceCase& problem, const RunOptions& how) {
  Results<Tensor> out = make_results(problem.spec);
  run(forward_arguments(problem, out, how), how.device());
  run(backward_arguments(problem, out, how), how.device());
  return out;
}

// Only o and ht.
inline Results<Tensor> run_forward(const RecurrenceCase& problem, const RunOptions& how) {
  Results<Tensor> out;
  out.o = nan_tensor(problem.spec.dtype, problem.spec.values());
  if (problem.spec.ht) out.ht = nan_tensor(DType::f32, problem.spec.states());
  run(forward_arguments(problem, out, how), how.device());
  return out;
}

// The forms and chunk lengths there are, on one thread, and their names in failures and in test names.
inline constexpr std::array kChunkLengths{16, 32, 64, 128};

inline std::vector<RunOptions> all_forms() {
  std::vector<RunOptions> forms;
  for (const int chunk : kChunkLengths) forms.push_back({Form::chunk, chunk, 1, true});
  forms.push_back({Form::recurrent, 0, 1, true});
  forms.push_back({Form::oracle, 0, 1, true});
  return forms;
}

inline std::string describe(const RunOptions& how) {
  if (how.form == Form::chunk) return "chunk" + std::to_string(how.chunk);
  return how.form == Form::recurrent ? "recurrent" : "oracle";
}
inline std::string form_test_name(const ::testing::TestParamInfo<RunOptions>& info) { return describe(info.param); }

// ---------------------------------------------------------------------------------------------------------------------
// Comparisons.

// Relative L2 errors allowed to float32 arithmetic. What is smaller than `vanishing` counts as zero.
struct Tolerance {
  double outputs = 1e-5, gradients = 5e-5, vanishing = 0;
};
// Float64 arithmetic with every result rounded once to float32 (2^-24), and so was the scale.
inline constexpr Tolerance kOracleTolerance{2e-7, 2e-7};

// What rounding the result to its type adds. No element moves by more than 2^-8 of itself in bfloat16. The root of the
// mean square over all mantissas is 0.42 * 2^-8, so for a large tensor 2^-9 is already generous, and yet too little for
// a result that was rounded twice.
inline double rounding_of(const Tensor& tensor) {
  if (tensor.dtype() != DType::bf16) return 0;
  return tensor.elements() >= 2048 ? 0x1p-9 : 0x1p-8;
}

inline std::vector<double> without_vanishing(std::vector<double> values, double vanishing) {
  for (double& value : values) {
    if (std::abs(value) < vanishing) value = 0;
  }
  return values;
}

inline void expect_close(const Results<Tensor>& got, const Reference& expected, const Tolerance& tolerance) {
  const auto results = got.fields();
  const auto references = expected.fields();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Tensor& tensor = *results[i].second;
    if (tensor.data() == nullptr) continue;  // was not wanted
    const std::string_view name = results[i].first;
    const double allowed = name.starts_with('d') ? tolerance.gradients : tolerance.outputs;
    const double error = relative_error(without_vanishing(to_doubles(tensor.view()), tolerance.vanishing),
                                        without_vanishing(*references[i].second, tolerance.vanishing));
    EXPECT_LE(error, allowed + rounding_of(tensor)) << name;
  }
}

inline void expect_same_bits(const Results<Tensor>& a, const Results<Tensor>& b) {
  const auto of_a = a.fields();
  const auto of_b = b.fields();
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_TRUE(same_bits(*of_a[i].second, *of_b[i].second)) << of_a[i].first;
  }
}

}  // namespace qdelta::testing
