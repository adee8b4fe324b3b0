// The chunkwise recurrence on the GPU against the CPU's at lengths of real training, forward and backward. The oracle
// would take minutes; the CPU's chunk form in float32 agrees with it to 1e-6 at 2048 tokens.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "cuda/recurrence_on_gpu.h"

namespace qdelta::testing {
namespace {

struct LongBounds {
  double outputs, gradients, gates;
};
constexpr LongBounds kLongFloat32{1e-4, 5e-4, 5e-4};
constexpr LongBounds kLongBFloat16{5e-3, 1e-2, 2e-2};

CaseSpec long_spec(DType dtype) {
  CaseSpec spec;
  spec.shared = 2;
  spec.key_dim = 128;
  spec.value_dim = 64;
  spec.scale = 0.0884F;
  spec.dtype = dtype;
  spec.lowest_g = -0.02;  // a memory of several chunks
  return spec;
}

CaseSpec uniform_spec(DType dtype, std::int64_t batch, std::int64_t tokens) {
  CaseSpec spec = long_spec(dtype);
  spec.batch = batch;
  spec.tokens = tokens;
  return spec;
}

CaseSpec packed_spec(DType dtype, const std::vector<std::int64_t>& lengths) {
  CaseSpec spec = long_spec(dtype);
  spec.cu_seqlens = {0};
  for (const std::int64_t length : lengths) spec.cu_seqlens.push_back(spec.cu_seqlens.back() + length);
  spec.tokens = spec.cu_seqlens.back();
  return spec;
}

// One long sequence among `count` short ones, some of them empty or of whole chunks.
std::vector<std::int64_t> one_among(std::int64_t length, int count) {
  Random random(41);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < count; ++i) {
    if (i == count / 3) lengths.push_back(length);
    lengths.push_back(pick<std::int64_t>(random, {0, 1, 17, 63, 64, 65, 128, 200, 331}));
  }
  return lengths;
}

// What the CPU makes of exactly these numbers, in float32 throughout.
Results<Tensor> on_cpu_in_float32(const RecurrenceCase& problem) {
  const auto floats = [](const Tensor& tensor) {
    return tensor.data() == nullptr ? Tensor() : converted(tensor.view(), DType::f32);
  };
  RecurrenceCase exact{problem.spec,        floats(problem.q),    floats(problem.k),      floats(problem.v),
                       floats(problem.g),   floats(problem.beta), floats(problem.lambda), floats(problem.h0),
                       floats(problem.d_o), floats(problem.d_ht)};
  exact.spec.dtype = DType::f32;
  return run_both(exact, {.form = Form::chunk, .chunk = 64, .threads = 0, .bf16_products = false});
}

void expect_as_on_cpu(const CaseSpec& spec, std::uint64_t seed) {
  const RecurrenceCase problem = random_case(spec, seed);
  const Results<Tensor> expected = on_cpu_in_float32(problem);
  const std::string where = fmt::format("{} {} {} x {} tokens, {} sequences", traits_of(spec.rule).name,
                                        name_of(spec.dtype), spec.batch, spec.tokens, spec.sequences());
  SCOPED_TRACE(where);
  const LongBounds& bounds = spec.dtype == DType::bf16 ? kLongBFloat16 : kLongFloat32;
  for (const bool saves : {false, true}) {
    const GpuRun how{.chunk_states = saves ? spec.dtype : DType::boolean, .saves_matrices = saves};
    const Results<Tensor> got = run_on_gpu(problem, how);
    const auto results = got.fields();
    const auto references = expected.fields();
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto& [name, tensor] = results[i];
      const double error = relative_error(tensor->view(), to_doubles(references[i].second->view()));
      const bool gate = name == "dg" || name == "dbeta" || name == "dlambda";
      const double bound = gate ? bounds.gates : name.starts_with('d') ? bounds.gradients : bounds.outputs;
      std::printf("%-52s %-8s %9.2e %9.2e\n", where.c_str(), std::string(name).c_str(), error, bound);
      EXPECT_LE(error, bound + rounding_of(*tensor)) << name << (saves ? ", with what the forward saved" : "");
    }
  }
}

void expect_long_uniform(DType dtype) {
  expect_as_on_cpu(uniform_spec(dtype, 1, 4096), 61);
  if (quick()) return;
  expect_as_on_cpu(uniform_spec(dtype, 2, 16384), 62);
  expect_as_on_cpu(uniform_spec(dtype, 1, 65536), 63);
  for (const Rule rule : {Rule::gated_delta, Rule::longhorn, Rule::linear}) {
    CaseSpec spec = uniform_spec(dtype, 1, 8192 + 37);
    spec.rule = rule;
    expect_as_on_cpu(spec, 64);
  }
}

void expect_long_packed(DType dtype) {
  expect_as_on_cpu(packed_spec(dtype, one_among(3000, 12)), 65);
  if (quick()) return;
  expect_as_on_cpu(packed_spec(dtype, one_among(40000, 50)), 66);
  expect_as_on_cpu(packed_spec(dtype, {4096, 1, 30000, 0, 8191, 12345, 64}), 67);
}

TEST(RecurrenceOnGpu, LongSequencesFloat32) {
  QDELTA_NEEDS_DEVICE();
  expect_long_uniform(DType::f32);
}
// States that remember thousands of tokens.
TEST(RecurrenceOnGpu, LongSequencesWithSlowDecay) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = uniform_spec(DType::f32, 1, quick() ? 4096 : 32768);
  spec.lowest_g = -0.001;
  expect_as_on_cpu(spec, 68);
}
TEST(RecurrenceOnGpu, LongSequencesBFloat16) {
  QDELTA_NEEDS_DEVICE();
  expect_long_uniform(DType::bf16);
}
TEST(RecurrenceOnGpu, LongPackedSequencesFloat32) {
  QDELTA_NEEDS_DEVICE();
  expect_long_packed(DType::f32);
}
TEST(RecurrenceOnGpu, LongPackedSequencesBFloat16) {
  QDELTA_NEEDS_DEVICE();
  expect_long_packed(DType::bf16);
}

}  // namespace
}  // namespace qdelta::testing
