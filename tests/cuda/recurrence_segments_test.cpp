// Sequences that are split into segments on the GPU, against the float64 oracle: the bounds do not depend on how many
// segments there are.
#include <gtest/gtest.h>

#include "cuda/recurrence_on_gpu.h"

namespace qdelta::testing {
namespace {

struct Bounds {
  double outputs, gradients, gates;
};
constexpr Bounds kFloat32{1e-5, 1e-5, 1e-5};
constexpr Bounds kBFloat16{4e-3, 6e-3, 1.4e-2};

double bound_of(std::string_view name, const Bounds& bounds) {
  if (name == "dg" || name == "dbeta" || name == "dlambda") return bounds.gates;
  return name.starts_with('d') ? bounds.gradients : bounds.outputs;
}

void expect_close(const Results<Tensor>& got, const Reference& expected, const Bounds& bounds,
                  const std::string& where) {
  const auto fields = got.fields();
  const auto references = expected.fields();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const auto& [name, tensor] = fields[i];
    if (tensor->data() == nullptr || tensor->elements() == 0) continue;
    EXPECT_LE(relative_error(to_doubles(tensor->view()), *references[i].second), bound_of(name, bounds))
        << name << " of " << where;
  }
}

// Once with chunk states and matrices saved by the forward, once with everything recomputed by the backward.
void expect_any_split(const CaseSpec& spec, std::uint64_t seed) {
  const RecurrenceCase problem = random_case(spec, seed);
  const Reference expected = reference_of(problem);
  const Bounds bounds = spec.dtype == DType::bf16 ? kBFloat16 : kFloat32;
  for (const int segments : {1, 2, 3, 7, 16, 64}) {
    const std::string where = fmt::format("{} segments, {}", segments, describe(spec));
    const GpuRun saved{.chunk_states = spec.dtype, .saves_matrices = true, .segments = segments};
    expect_close(run_on_gpu(problem, saved), expected, bounds, where + ", saved");
    expect_close(run_on_gpu(problem, {.segments = segments}), expected, bounds, where + ", recomputed");
  }
}

CaseSpec long_spec(DType dtype) {
  CaseSpec spec;
  spec.tokens = quick() ? 600 : 2000;
  spec.key_dim = 128;
  spec.value_dim = 96;
  spec.dtype = dtype;
  spec.scale = 0.088F;
  spec.lowest_g = -0.02;  // states that remember across segments
  return spec;
}

class Segments : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(OnGpu, Segments, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST_P(Segments, WithInitialAndFinalStates) {
  QDELTA_NEEDS_DEVICE();
  expect_any_split(long_spec(GetParam()), 1);
}

TEST_P(Segments, WithoutThem) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = long_spec(GetParam());
  spec.h0 = spec.d_ht = spec.ht = spec.dh0 = false;
  spec.heads = 2;
  spec.shared = 2;
  spec.tokens = 700;
  expect_any_split(spec, 2);
}

TEST_P(Segments, EveryRule) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = long_spec(GetParam());
  spec.tokens = 500;
  spec.key_dim = 64;
  for (const Rule rule : all_rules()) {
    spec.rule = rule;
    expect_any_split(spec, 3);
  }
}

TEST_P(Segments, WideAndOddKeys) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = long_spec(GetParam());
  spec.tokens = 500;
  for (const std::int64_t keys : {33, 96, 200, 256}) {
    spec.key_dim = keys;
    expect_any_split(spec, 4);
  }
}

TEST_P(Segments, PackedSequences) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = long_spec(GetParam());
  spec.tokens = 2000;
  spec.cu_seqlens = {0, 5, 5, 70, 1500, 1501, 2000};
  expect_any_split(spec, 5);
}

TEST_P(Segments, StrongDecay) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = long_spec(GetParam());
  spec.tokens = 700;
  spec.lowest_g = -20;
  expect_any_split(spec, 6);
}

// The number of segments is a function of the shape: the same call gives the same bits, whether it is split or not.
TEST_P(Segments, EqualBitsEveryTime) {
  QDELTA_NEEDS_DEVICE();
  const RecurrenceCase problem = random_case(long_spec(GetParam()), 7);
  for (const int segments : {0, 5}) {
    const Results<Tensor> first = run_on_gpu(problem, {.segments = segments});
    const Results<Tensor> again = run_on_gpu(problem, {.segments = segments});
    for (std::size_t i = 0; i < first.fields().size(); ++i)
      EXPECT_EQ(to_doubles(first.fields()[i].second->view()), to_doubles(again.fields()[i].second->view()))
          << first.fields()[i].first;
  }
}

}  // namespace
}  // namespace qdelta::testing
