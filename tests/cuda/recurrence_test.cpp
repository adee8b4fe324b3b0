// The chunkwise recurrence on the GPU against the float64 oracle: golden cases, random cases, extreme inputs, and
// invariances.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "cuda/recurrence_on_gpu.h"
#include "kernels/extremes.h"
#include "kernels/golden_case.h"

namespace qdelta::testing {
namespace {

// Relative L2 errors. With bf16 operands every product rounds twice, and gradients of gates are sums of many that
// cancel.
struct GpuTolerance {
  double outputs, gradients, gates, vanishing = 0;
  bool rows = true;  // dq and dk are compared, not only finite
};
constexpr GpuTolerance kFloat32{1e-4, 5e-4, 5e-4};
constexpr GpuTolerance kBFloat16{5e-3, 1e-2, 2e-2};

double allowed(std::string_view name, const GpuTolerance& tolerance) {
  if (name == "dg" || name == "dbeta" || name == "dlambda") return tolerance.gates;
  return name.starts_with('d') ? tolerance.gradients : tolerance.outputs;
}

double error_of(const Tensor& got, const std::vector<double>& expected, double vanishing = 0) {
  return relative_error(without_vanishing(to_doubles(got.view()), vanishing), without_vanishing(expected, vanishing));
}

// The largest error of every result over all cases, printed at the end.
class WorstErrors : public ::testing::Environment {
 public:
  void note(const std::string& suite, std::string_view name, double error, const std::string& where) {
    auto& entry = table_[suite][std::string(name)];
    if (error >= entry.first) entry = {error, where};
  }
  void TearDown() override {
    for (const auto& [suite, results] : table_) {
      for (const auto& [name, worst] : results)
        std::printf("%-22s %-8s %9.2e  %s\n", suite.c_str(), name.c_str(), worst.first, worst.second.c_str());
    }
  }

 private:
  std::map<std::string, std::map<std::string, std::pair<double, std::string>>> table_;
};
WorstErrors* const worst_errors = static_cast<WorstErrors*>(::testing::AddGlobalTestEnvironment(new WorstErrors));

void expect_close(const std::string& suite, const std::string& where, const Results<Tensor>& got,
                  const Reference& expected, const GpuTolerance& tolerance) {
  const auto results = got.fields();
  const auto references = expected.fields();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& [name, tensor] = results[i];
    if (tensor->data() == nullptr || tensor->elements() == 0) continue;
    if (!tolerance.rows && (name == "dq" || name == "dk")) {
      EXPECT_TRUE(all_finite(to_doubles(tensor->view()))) << name << " of " << where;
      continue;
    }
    const double error = error_of(*tensor, *references[i].second, tolerance.vanishing);
    worst_errors->note(suite, name, error, where);
    EXPECT_LE(error, allowed(name, tolerance) + rounding_of(*tensor)) << name << " of " << where;
  }
}

Reference values_of(const Results<Tensor>& results) {
  const auto values = [](const Tensor& tensor) { return to_doubles(tensor.view()); };
  return {values(results.o),  values(results.ht),    values(results.dq),      values(results.dk), values(results.dv),
          values(results.dg), values(results.dbeta), values(results.dlambda), values(results.dh0)};
}

TEST(RecurrenceOnGpu, GoldenFloat32) {
  QDELTA_NEEDS_DEVICE();
  for (const GoldenCase& golden : read_golden_cases())
    expect_close("golden f32", golden.name, run_on_gpu(golden.problem), golden.expected, kFloat32);
}

// Against the oracle, and against what the CPU makes of the same numbers with its own bf16 products. The CPU keeps
// states in float32, the GPU those between chunks in bf16; dg, in which they meet, is 2.5 times as far off as the CPU's
// in one of the cases that are not in the repository (docs/gpu.md). So of those the bounds count, the ratio is only
// noted.
TEST(RecurrenceOnGpu, GoldenBFloat16) {
  QDELTA_NEEDS_DEVICE();
  for (const GoldenCase& golden : read_golden_cases()) {
    const RecurrenceCase rounded = in_bfloat16(golden.problem);
    const Reference expected = reference_of(rounded);
    const Results<Tensor> got = run_on_gpu(rounded);
    expect_close("golden bf16", golden.name, got, expected, kBFloat16);
    const Results<Tensor> cpu = run_both(rounded, {Form::chunk, 64, 0, true});
    const auto of_gpu = got.fields();
    const auto of_cpu = cpu.fields();
    for (std::size_t i = 0; i < of_gpu.size(); ++i) {
      if (of_gpu[i].second->data() == nullptr) continue;
      const double gpu_error = error_of(*of_gpu[i].second, *expected.fields()[i].second);
      const double cpu_error = error_of(*of_cpu[i].second, *expected.fields()[i].second);
      if (cpu_error > 0) worst_errors->note("bf16 gpu/cpu error", of_gpu[i].first, gpu_error / cpu_error, golden.name);
      if (golden.of_repository) {
        EXPECT_LE(gpu_error, 2 * cpu_error) << of_gpu[i].first << " of " << golden.name;
      }
    }
  }
}

// Shapes, rules, types, layouts and optional tensors at random.
CaseSpec random_spec(Random& random) {
  CaseSpec spec;
  spec.rule = pick(random, all_rules());
  if (chance(random, 0.3)) spec.rule = Rule::q_delta;
  spec.batch = random.integer(1, 2);
  spec.tokens = pick<std::int64_t>(random, {1, 2, 15, 63, 64, 65, 100, 128, 150, 200});
  spec.heads = random.integer(1, 2);
  spec.shared = random.integer(1, 3);
  spec.key_dim = pick<std::int64_t>(random, {1, 8, 16, 24, 33, 64, 80, 128, 130, 192, 256});
  spec.value_dim = pick<std::int64_t>(random, {1, 8, 16, 20, 63, 64, 72, 128, 256, 300});
  if (chance(random, 0.3)) {
    spec.batch = 1;
    spec.cu_seqlens = {0, spec.tokens / 3, spec.tokens / 3, spec.tokens - spec.tokens / 4, spec.tokens};
  }
  spec.scale = chance(random, 0.5) ? 1.0F / std::sqrt(static_cast<float>(spec.key_dim)) : 0.7F;
  spec.qk_l2norm = chance(random, 0.7);
  spec.h0 = chance(random, 0.6);
  spec.d_ht = chance(random, 0.6);
  spec.ht = chance(random, 0.7);
  spec.dh0 = chance(random, 0.7);
  spec.dgates = chance(random, 0.8);
  spec.unread_gates = chance(random, 0.5);
  spec.dtype = chance(random, 0.6) ? DType::bf16 : DType::f32;
  return spec;
}

TEST(RecurrenceOnGpu, RandomCases) {
  QDELTA_NEEDS_DEVICE();
  Random random(5);
  const int count = quick() ? 6 : 60;
  for (int i = 0; i < count; ++i) {
    const CaseSpec spec = random_spec(random);
    GpuRun how;
    if (chance(random, 0.3)) how.place = {.padding = 3, .reversed = true};
    how.place.offset = chance(random, 0.2) ? random.integer(1, 7) : 0;
    how.saves_matrices = i % 2 == 1;
    if (chance(random, 0.6)) how.chunk_states = chance(random, 0.5) ? spec.dtype : DType::f32;
    RecurrenceCase problem = random_case(spec, 100 + i);
    // Gates, and results, of another type than the rows.
    if (chance(random, 0.4)) {
      for (Tensor* gate : {&problem.g, &problem.beta, &problem.lambda}) {
        if (gate->data() != nullptr) *gate = converted(gate->view(), chance(random, 0.5) ? DType::f32 : DType::bf16);
      }
    }
    if (chance(random, 0.3)) how.gate_results = DType::f32;
    if (chance(random, 0.2)) how.results = DType::f32;
    const std::string where = fmt::format("#{} {} reversed={} offset={} saves={} states={}", i, describe(spec),
                                          how.place.reversed, how.place.offset, how.saves_matrices,
                                          how.chunk_states == DType::boolean ? "-" : name_of(how.chunk_states));
    SCOPED_TRACE(where);
    const bool bf16 = spec.dtype == DType::bf16;
    // A row of one key has no gradient through its norm: what is left is rounding.
    GpuTolerance tolerance = bf16 ? kBFloat16 : kFloat32;
    tolerance.rows = !spec.qk_l2norm || spec.key_dim > 1;
    expect_close(bf16 ? "random bf16" : "random f32", where, run_on_gpu(problem, how), reference_of(problem),
                 tolerance);
  }
}

// Every rule in the shape of the models.
TEST(RecurrenceOnGpu, ModelShapes) {
  QDELTA_NEEDS_DEVICE();
  for (const Rule rule : all_rules()) {
    if (quick() && rule != Rule::q_delta) continue;
    CaseSpec spec;
    spec.rule = rule;
    spec.tokens = 200;
    spec.key_dim = 128;
    spec.value_dim = 256;
    spec.scale = 0.0884F;
    spec.dtype = DType::bf16;
    const RecurrenceCase problem = random_case(spec, 9);
    const Reference expected = reference_of(problem);
    for (const DType states : {DType::boolean, DType::bf16, DType::f32}) {
      expect_close("model shape bf16", describe(spec), run_on_gpu(problem, {.chunk_states = states}), expected,
                   kBFloat16);
    }
  }
  CaseSpec wide;
  wide.tokens = 100;
  wide.key_dim = 256;
  wide.value_dim = 512;
  wide.scale = 0.0625F;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    wide.dtype = dtype;
    const RecurrenceCase problem = random_case(wide, 10);
    expect_close("wide shape", describe(wide), run_on_gpu(problem), reference_of(problem),
                 dtype == DType::bf16 ? kBFloat16 : kFloat32);
  }
}

// Widths between the powers of two: whole panels of a tile, parts of one, and one head's odd number of column blocks.
TEST(RecurrenceOnGpu, OtherWidths) {
  QDELTA_NEEDS_DEVICE();
  for (const auto& [keys, values] : {std::pair{96, 192}, {72, 64}, {88, 320}, {104, 200}, {160, 96}}) {
    if (quick() && keys > 72 && keys != 96) continue;
    CaseSpec spec;
    spec.batch = 2;
    spec.tokens = 150;
    spec.key_dim = keys;
    spec.value_dim = values;
    spec.dtype = DType::bf16;
    const RecurrenceCase problem = random_case(spec, 15);
    expect_close("other widths", describe(spec), run_on_gpu(problem, {.saves_matrices = true}), reference_of(problem),
                 kBFloat16);
  }
}

// The sequences of a case, repeated.
RecurrenceCase repeated(const RecurrenceCase& problem, std::int64_t times) {
  const auto repeat = [&](const Tensor& tensor) {
    if (tensor.data() == nullptr) return Tensor();
    Shape shape = tensor.shape();
    shape.extent[0] *= times;
    Tensor out(tensor.dtype(), shape);
    for (std::int64_t i = 0; i < times; ++i)
      std::memcpy(out.data() + i * static_cast<std::int64_t>(tensor.bytes()), tensor.data(), tensor.bytes());
    return out;
  };
  RecurrenceCase out{problem.spec,        repeat(problem.q),    repeat(problem.k),      repeat(problem.v),
                     repeat(problem.g),   repeat(problem.beta), repeat(problem.lambda), repeat(problem.h0),
                     repeat(problem.d_o), repeat(problem.d_ht)};
  out.spec.batch *= times;
  return out;
}
// The first of `times` equal parts; the others must have the same bits.
Tensor one_of(const Tensor& tensor, std::int64_t times) {
  if (tensor.data() == nullptr) return {};
  Shape shape = tensor.shape();
  shape.extent[0] /= times;
  Tensor out(tensor.dtype(), shape);
  std::memcpy(out.data(), tensor.data(), out.bytes());
  for (std::int64_t i = 1; i < times; ++i) {
    const std::byte* part = tensor.data() + i * static_cast<std::int64_t>(out.bytes());
    EXPECT_EQ(std::memcmp(out.data(), part, out.bytes()), 0) << "repetition " << i;
  }
  return out;
}

// Enough sequences to fill the GPU: the backward scan then recomputes V' from the chunk states that the forward saved.
struct ManySequencesSpec {
  Rule rule;
  std::int64_t keys, values, shared;
};
void expect_many_sequences(const ManySequencesSpec& many, DType dtype) {
  CaseSpec spec;
  spec.rule = many.rule;
  spec.batch = 2;
  spec.tokens = 150;
  spec.heads = 1;
  spec.shared = many.shared;
  spec.key_dim = many.keys;
  spec.value_dim = many.values;
  spec.dtype = dtype;
  const RecurrenceCase few = random_case(spec, 12);
  const std::int64_t scans = spec.batch * spec.shared * ceil_div(spec.value_dim, 64);
  const std::int64_t times = ceil_div(2 * device_context().sm_count(), scans);
  const RecurrenceCase repetitions = repeated(few, times);
  const Reference expected = reference_of(few);
  for (const DType states : {DType::boolean, DType::bf16, DType::f32}) {
    if (dtype == DType::f32 && states == DType::bf16) continue;
    SCOPED_TRACE(describe(spec));
    const Results<Tensor> got = run_on_gpu(repetitions, {.chunk_states = states, .saves_matrices = true});
    const auto one = [&](const Tensor& tensor) { return one_of(tensor, times); };
    expect_close(dtype == DType::bf16 ? "many bf16" : "many f32", describe(spec),
                 {one(got.o), one(got.ht), one(got.dq), one(got.dk), one(got.dv), one(got.dg), one(got.dbeta),
                  one(got.dlambda), one(got.dh0)},
                 expected, dtype == DType::bf16 ? kBFloat16 : kFloat32);
  }
}
void expect_many_sequences_of_every_shape(DType dtype) {
  for (const Rule rule : {Rule::q_delta, Rule::gated_delta, Rule::longhorn, Rule::linear}) {
    for (const std::int64_t keys : {64, 128, 256}) {
      if (quick() && (rule != Rule::q_delta || keys != 128)) continue;
      expect_many_sequences({rule, keys, rule == Rule::longhorn ? 65 : 72, 1}, dtype);
    }
  }
  // One block of columns, and three; keys and columns that are no multiples of eight; shared heads.
  expect_many_sequences({Rule::q_delta, 128, 64, 1}, dtype);
  expect_many_sequences({Rule::longhorn, 128, 130, 1}, dtype);
  expect_many_sequences({Rule::q_delta, 130, 130, 2}, dtype);
}
TEST(RecurrenceOnGpu, ManySequencesFloat32) {
  QDELTA_NEEDS_DEVICE();
  expect_many_sequences_of_every_shape(DType::f32);
}
TEST(RecurrenceOnGpu, ManySequencesBFloat16) {
  QDELTA_NEEDS_DEVICE();
  expect_many_sequences_of_every_shape(DType::bf16);
}

// ---------------------------------------------------------------------------------------------------------------------
// Extremes.

TEST(RecurrenceOnGpu, Extremes) {
  QDELTA_NEEDS_DEVICE();
  std::vector<Extreme> all = extremes();
  all.push_back({"identical keys and queries, doubled, under strong decay", [](RecurrenceCase& c) {
                   repeat_first_token(c.k);
                   std::memcpy(c.q.data(), c.k.data(), c.k.bytes());
                   fill(c.beta, 2);
                   fill(c.lambda, 2);
                   fill(c.g, -5);
                 }});
  for (const Extreme& extreme : all) {
    for (const Rule rule : {Rule::linear, Rule::longhorn, Rule::gated_delta, Rule::q_delta}) {
      const RecurrenceCase problem = extreme_case(extreme, rule);
      const std::string where = fmt::format("{}, {}", extreme.name, traits_of(rule).name);
      SCOPED_TRACE(where);
      expect_close("extremes f32", where, run_on_gpu(problem), reference_of(problem),
                   {extreme.slack * 1e-4, extreme.slack * 5e-4, extreme.slack * 5e-4, 1e-36});
      const Results<Tensor> got = run_on_gpu(in_bfloat16(problem));
      for (const auto& [field, tensor] : got.fields()) {
        EXPECT_TRUE(all_finite(to_doubles(tensor->view()))) << field << " in bf16";
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Invariances.

RecurrenceCase invariance_case(DType dtype, std::int64_t tokens = 200) {
  CaseSpec spec;
  spec.batch = 2;
  spec.tokens = tokens;
  spec.heads = 2;
  spec.shared = 2;
  spec.key_dim = 48;
  spec.value_dim = 72;
  spec.dtype = dtype;
  return random_case(spec, 31);
}

TEST(RecurrenceOnGpu, IsDeterministic) {
  QDELTA_NEEDS_DEVICE();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const RecurrenceCase problem = invariance_case(dtype);
    const Results<Tensor> first = run_on_gpu(problem);
    for (int i = 0; i < 99; ++i) expect_same_bits(run_on_gpu(problem), first);
    // The same captured in a graph, strided, misaligned.
    expect_same_bits(run_on_gpu(problem, {.graph = true}), first);
    expect_same_bits(run_on_gpu(problem, {.place = {.padding = 3, .reversed = true}}), first);
    expect_same_bits(run_on_gpu(problem, {.place = {.offset = 3}}), first);
    // Saved chunk states of the operand type are those that the backward would recompute.
    expect_same_bits(run_on_gpu(problem, {.chunk_states = dtype}), first);
    // Saved chunk matrices are those that the backward would recompute.
    expect_same_bits(run_on_gpu(problem, {.saves_matrices = true}), first);
    expect_same_bits(run_on_gpu(problem, {.chunk_states = dtype, .saves_matrices = true, .graph = true}), first);
  }
  // A backward with float32 operands cannot use what a bf16 forward saved.
  RecurrenceCase mixed = invariance_case(DType::bf16);
  mixed.d_o = converted(mixed.d_o.view(), DType::f32);
  expect_same_bits(run_on_gpu(mixed, {.saves_matrices = true}), run_on_gpu(mixed));
}

// More sequences than there is room for at once, of which some begin on one SM, or two, and end on others.
void expect_shared_sequences(Rule rule, std::int64_t values) {
  CaseSpec spec;
  spec.rule = rule;
  spec.tokens = 300;
  spec.key_dim = 128;
  spec.value_dim = values;
  spec.dtype = DType::bf16;
  SCOPED_TRACE(describe(spec));
  const RecurrenceCase problem = random_case(spec, 14);
  const Results<Tensor> alone = run_on_gpu(problem);
  const std::int64_t room = device_context().sm_count() / (values / 128);
  for (const std::int64_t times : {room + 1, room + room / 2, 2 * room + 3}) {
    const Results<Tensor> many = run_on_gpu(repeated(problem, times), {.saves_matrices = true});
    const auto one = [&](const Tensor& tensor) { return one_of(tensor, times); };
    expect_same_bits({one(many.o), one(many.ht), one(many.dq), one(many.dk), one(many.dv), one(many.dg),
                      one(many.dbeta), one(many.dlambda), one(many.dh0)},
                     alone);
    if (quick()) return;
  }
}
TEST(RecurrenceOnGpu, SequencesThatSMsShareHaveTheSameBits) {
  QDELTA_NEEDS_DEVICE();
  expect_shared_sequences(Rule::q_delta, 256);
  if (quick()) return;
  expect_shared_sequences(Rule::q_delta, 128);
  expect_shared_sequences(Rule::q_delta, 512);
  expect_shared_sequences(Rule::linear, 128);
}

TEST(RecurrenceOnGpu, PackedSequencesEqualABatch) {
  QDELTA_NEEDS_DEVICE();
  // Two rows of a batch, and the same two packed into one.
  const RecurrenceCase batch = invariance_case(DType::f32);
  RecurrenceCase packed{batch.spec, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  packed.spec.batch = 1;
  packed.spec.tokens = 2 * batch.spec.tokens;
  packed.spec.cu_seqlens = {0, batch.spec.tokens, 2 * batch.spec.tokens};
  const auto flattened = [](const Tensor& tensor) {
    Shape shape = tensor.shape();
    shape.extent[1] *= shape.extent[0];
    shape.extent[0] = 1;
    Tensor out(tensor.dtype(), shape);
    std::memcpy(out.data(), tensor.data(), tensor.bytes());
    return out;
  };
  packed.q = flattened(batch.q), packed.k = flattened(batch.k), packed.v = flattened(batch.v);
  packed.g = flattened(batch.g), packed.beta = flattened(batch.beta), packed.lambda = flattened(batch.lambda);
  packed.d_o = flattened(batch.d_o);
  packed.h0 = converted(batch.h0.view(), DType::f32);
  packed.d_ht = converted(batch.d_ht.view(), DType::f32);
  const Results<Tensor> one = run_on_gpu(batch);
  const Results<Tensor> other = run_on_gpu(packed);
  for (std::size_t i = 0; i < one.fields().size(); ++i) {
    const Tensor& a = *one.fields()[i].second;
    const Tensor& b = *other.fields()[i].second;
    ASSERT_EQ(a.bytes(), b.bytes());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << one.fields()[i].first;
  }
}

// A single one has no tables.
TEST(RecurrenceOnGpu, OnePackedSequenceEqualsABatchOfOne) {
  QDELTA_NEEDS_DEVICE();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CaseSpec spec;
    spec.tokens = 150;
    spec.key_dim = 40;
    spec.value_dim = 72;
    spec.dtype = dtype;
    const RecurrenceCase alone = random_case(spec, 15);
    RecurrenceCase packed = random_case(spec, 15);
    packed.spec.cu_seqlens = {0, spec.tokens};
    expect_same_bits(run_on_gpu(packed), run_on_gpu(alone));
  }
}

// A sequence cut in two, its state carried over, is the sequence; and so are its gradients.
TEST(RecurrenceOnGpu, SplitsDoNotMatter) {
  QDELTA_NEEDS_DEVICE();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const RecurrenceCase problem = invariance_case(dtype);
    const Reference whole = values_of(run_on_gpu(problem));
    for (const std::int64_t cut : {1, 33, 64, 199}) {
      const GpuCase on_gpu(problem);
      const auto part_of = [&](auto args, std::int64_t begin, std::int64_t end) {
        const auto narrow = [&](auto& view) {
          if (view) view = narrowed(view, 1, begin, end - begin);
        };
        for (ConstTensorView* view : {&args.in.q, &args.in.k, &args.in.v, &args.in.g, &args.in.beta, &args.in.lambda})
          narrow(*view);
        if constexpr (requires { args.o; }) {
          narrow(args.o);
        } else {
          narrow(args.d_o);
          for (TensorView* view : {&args.dq, &args.dk, &args.dv, &args.dg, &args.dbeta, &args.dlambda}) narrow(*view);
        }
        return args;
      };
      const std::int64_t tokens = problem.spec.tokens;
      const DeviceTensor state(DType::f32, problem.spec.states());
      const DeviceTensor d_state(DType::f32, problem.spec.states());
      RecurrenceForward first = part_of(on_gpu.forward(), 0, cut);
      RecurrenceForward second = part_of(on_gpu.forward(), cut, tokens);
      RecurrenceBackward first_back = part_of(on_gpu.backward(), 0, cut);
      RecurrenceBackward second_back = part_of(on_gpu.backward(), cut, tokens);
      first.ht = state.view();
      second.in.h0 = second_back.in.h0 = state.view();
      second_back.dh0 = d_state.view();
      first_back.d_ht = d_state.view();
      // The first part's backward needs that of the second.
      on_gpu.run(first, second_back);
      on_gpu.run(second, second_back);
      on_gpu.run(first, first_back);
      expect_close(dtype == DType::f32 ? "splits f32" : "splits bf16", fmt::format("cut at {}", cut), on_gpu.results(),
                   whole, dtype == DType::f32 ? GpuTolerance{1e-5, 5e-5, 5e-5} : kBFloat16);
    }
  }
}

// The chunk form on the GPU, the recurrent form on the CPU.
TEST(RecurrenceOnGpu, AgreesWithTheRecurrentForm) {
  QDELTA_NEEDS_DEVICE();
  const RecurrenceCase problem = invariance_case(DType::f32);
  expect_close("chunk and recurrent", "f32", run_on_gpu(problem),
               values_of(run_both(problem, {Form::recurrent, 0, 0, true})), {1e-5, 5e-5, 5e-5});
}

TEST(RecurrenceOnGpu, NoTokens) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec;
  spec.tokens = 0;
  const RecurrenceCase problem = random_case(spec, 1);
  const Results<Tensor> got = run_on_gpu(problem);
  EXPECT_TRUE(same_bits(got.ht, problem.h0));
  EXPECT_TRUE(same_bits(got.dh0, problem.d_ht));
  CaseSpec packed;
  packed.cu_seqlens = {0, 0, 40, 40};
  const RecurrenceCase some = random_case(packed, 2);
  expect_close("empty sequences", describe(packed), run_on_gpu(some), reference_of(some), kFloat32);
}

TEST(RecurrenceOnGpu, RefusesWhatIsUnsupported) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec;
  const RecurrenceCase problem = random_case(spec, 3);
  const GpuCase on_gpu(problem);
  RecurrenceForward args = on_gpu.forward();
  args.in.v.stride[3] = 2;
  args.in.v.shape.extent[3] = args.o.shape.extent[3] = 8;
  args.ht = {};
  args.in.h0 = {};
  expect_error(Status::invalid_argument, {"v", "stride 2", "contiguous"},
               [&] { return cuda::recurrence_chunk_workspace(device_context(), args); });
  spec.key_dim = 257;
  const RecurrenceCase wide = random_case(spec, 3);
  const GpuCase too_wide(wide);
  expect_error(Status::invalid_argument, {"K is 257", "256"},
               [&] { return cuda::recurrence_chunk_workspace(device_context(), too_wide.forward()); });
  const GpuCase with_states(problem, {.chunk_states = DType::f32});
  args = with_states.forward();
  args.run.chunk = 32;
  expect_error(Status::invalid_argument, {"32", "64"},
               [&] { return cuda::recurrence_chunk_workspace(device_context(), args); });
  args = on_gpu.forward();
  expect_error(Status::invalid_argument, {"workspace has 0 bytes"}, [&] {
    Workspace none{std::span<std::byte>()};
    cuda::recurrence_chunk_forward(device_context(), args, none);
    return 0;
  });
  const DeviceMemory memory(cuda::recurrence_chunk_workspace(device_context(), args));
  Workspace space(memory.bytes());
  const DeviceMemory little(64);
  args.saved = little.bytes();
  expect_error(Status::invalid_argument, {"saved has 64 bytes"}, [&] {
    cuda::recurrence_chunk_forward(device_context(), args, space);
    return 0;
  });
}

}  // namespace
}  // namespace qdelta::testing
