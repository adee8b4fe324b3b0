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

// Segments of a given length
// -------------------------------------------------------------------------------------------

// The gradients do not depend on them.
void expect_given_length(const CaseSpec& spec, std::uint64_t seed) {
  const RecurrenceCase problem = random_case(spec, seed);
  const Reference expected = reference_of(problem);
  const Bounds bounds = spec.dtype == DType::bf16 ? kBFloat16 : kFloat32;
  for (const std::int64_t tokens : {64, 128, 512}) {
    const std::string where = fmt::format("segments of {} tokens, {}", tokens, describe(spec));
    expect_close(run_on_gpu(problem, {.segment_tokens = tokens}), expected, bounds, where);
  }
}

TEST_P(Segments, OfAGivenLength) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = long_spec(GetParam());
  for (const std::int64_t tokens : {500, 512, 1400}) {  // none of 512 tokens, one and nothing behind it, two and a rest
    if (quick() && tokens > 512) continue;
    spec.tokens = tokens;
    expect_given_length(spec, 8);
  }
  spec.h0 = spec.d_ht = spec.ht = spec.dh0 = false;
  spec.tokens = 640;
  expect_given_length(spec, 9);
  spec.ht = true;
  spec.batch = 2;
  expect_given_length(spec, 10);
}

TEST_P(Segments, OfAGivenLengthInPackedSequences) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = long_spec(GetParam());
  spec.tokens = 2000;
  spec.cu_seqlens = {0, 5, 5, 517, 645, 1344, 1345, 2000};
  expect_given_length(spec, 11);
}

TEST_P(Segments, OfAGivenLengthForEveryRule) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = long_spec(GetParam());
  spec.tokens = 300;
  for (const Rule rule : all_rules()) {
    spec.rule = rule;
    expect_given_length(spec, 12);
  }
}

// Calls one after the other that end at `cuts`, in place on the states.
struct CutForward {
  Tensor o, states;

  CutForward(const RecurrenceCase& problem, const std::vector<std::int64_t>& cuts, std::int64_t segment_tokens,
             bool packed = false) {
    const DeviceProblem in(problem, {});
    const DeviceTensor outputs(problem.spec.dtype, problem.spec.values());
    std::int64_t begin = 0;
    for (std::size_t i = 0; i <= cuts.size(); ++i) {
      const std::int64_t end = i < cuts.size() ? cuts[i] : problem.spec.tokens;
      const std::vector<std::int64_t> offsets{0, end - begin};
      RecurrenceForward args;
      args.in = inputs_of(in);
      for (ConstTensorView* view : {&args.in.q, &args.in.k, &args.in.v, &args.in.g, &args.in.beta, &args.in.lambda})
        *view = narrowed(*view, 1, begin, end - begin);
      if (packed) args.in.cu_seqlens = offsets;
      args.o = narrowed(outputs.view(), 1, begin, end - begin);
      args.ht = in.h0.view();
      args.run.segment_tokens = segment_tokens;
      const DeviceMemory memory(cuda::recurrence_chunk_workspace(device_context(), args));
      Workspace workspace(memory.bytes());
      cuda::recurrence_chunk_forward(device_context(), args, workspace);
      device_context().synchronize();
      begin = end;
    }
    o = outputs.get();
    states = in.h0.get();
  }
};

void expect_equal_bits(const CutForward& got, const CutForward& expected, const std::string& where) {
  EXPECT_EQ(to_doubles(got.o.view()), to_doubles(expected.o.view())) << where;
  EXPECT_EQ(to_doubles(got.states.view()), to_doubles(expected.states.view())) << where;
}

// Wherever no call completes a segment that it does not begin. With many heads a long call has more blocks than the GPU
// has SMs, and a short one fewer.
TEST_P(Segments, OfAGivenLengthHaveTheSameBitsInAnyCall) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec = long_spec(GetParam());
  const std::int64_t segment = quick() ? 128 : 512;
  for (const std::int64_t heads : {1, 24}) {
    if (quick() && heads > 1) continue;
    spec.heads = heads;
    for (const std::int64_t rest : {std::int64_t{0}, segment / 2 + 37}) {
      spec.tokens = 2 * segment + rest;
      const RecurrenceCase problem = random_case(spec, 13);
      const CutForward whole(problem, {}, segment);
      expect_equal_bits(CutForward(problem, {}, segment, true), whole, fmt::format("packed, {}", describe(spec)));
      std::vector<std::vector<std::int64_t>> all{{segment}, {segment, 2 * segment}};
      if (rest == 0) all.pop_back();
      if (rest > 0) all.push_back({segment, 2 * segment + segment / 2});
      for (const auto& cuts : all) {
        const std::string where = fmt::format("cut at [{}], {}", fmt::join(cuts, " "), describe(spec));
        expect_equal_bits(CutForward(problem, cuts, segment), whole, where);
        expect_equal_bits(CutForward(problem, cuts, segment, true), whole, where + ", packed");
      }
    }
  }
}

TEST(SegmentsOfAGivenLength, AreChecked) {
  QDELTA_NEEDS_DEVICE();
  const RecurrenceCase problem = random_case({}, 14);
  const auto expect_refused = [&](int segments, std::int64_t tokens) {
    const GpuCase on_gpu(problem, {.segments = segments, .segment_tokens = tokens});
    EXPECT_THROW(static_cast<void>(cuda::recurrence_chunk_workspace(device_context(), on_gpu.forward())), Error);
  };
  expect_refused(0, 100);
  expect_refused(0, -64);
  expect_refused(2, 64);
  const GpuCase on_gpu(problem);
  RecurrenceBackward backward = on_gpu.backward();
  backward.run.segment_tokens = 64;
  EXPECT_THROW(static_cast<void>(cuda::recurrence_chunk_workspace(device_context(), backward)), Error);
}

}  // namespace
}  // namespace qdelta::testing
