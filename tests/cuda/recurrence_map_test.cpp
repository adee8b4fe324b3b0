// The map of a range of tokens on the GPU, S_out = M S_in + N and dS_in = M^T dS_out + dN, against the double-precision
// oracle; also of ranges that are split into segments.
#include <gtest/gtest.h>

#include "cuda/recurrence_on_gpu.h"
#include "kernels/recurrence_map_case.h"

namespace qdelta::testing {
namespace {

template <class Args>
void run_guarded(const Args& args, void (*op)(const Device&, const Args&, Workspace&)) {
  const Device device{1, &device_context()};
  const DeviceMemory memory(recurrence_workspace(device, args));
  Workspace workspace(memory.bytes());
  op(device, args, workspace);
  device_context().synchronize();
}

struct GpuMap {
  DeviceTensor m, n, dn;

  explicit GpuMap(const RecurrenceCase& problem)
      : m(DType::f32,
          {problem.spec.sequences(), problem.spec.value_heads(), problem.spec.key_dim, problem.spec.key_dim}),
        n(DType::f32, problem.spec.states()),
        dn(DType::f32, problem.spec.states()) {
    const DeviceProblem there(problem, {});
    run_guarded<RecurrenceMap>({.in = inputs_of(there), .m = m.view(), .n = n.view()}, recurrence_map);
    run_guarded<RecurrenceEntryGradient>({.in = inputs_of(there), .d_o = there.d_o.view(), .dn = dn.view()},
                                         recurrence_entry_gradient);
  }
};

Tensor product_of(const DeviceTensor& m, const Tensor& state, const DeviceTensor& add, bool transposed) {
  const DeviceTensor there(state);
  const DeviceTensor out(DType::f32, state.shape());
  run_guarded<RecurrenceMapProduct>(
      {.m = m.view(), .state = there.view(), .add = add.view(), .out = out.view(), .transposed = transposed},
      recurrence_map_product);
  return out.get();
}

// The bounds of the recurrence in segments: those of its outputs, and of its gradients. M by itself is a product over
// chunks, whose roundings all stay in it (in N and in states the older ones decay) and add up like a random walk: in
// bf16 its error is 1.1e-3 to 1.6e-3 times the root of the number of chunks, from 1 to 79 of them.
void check_map(const RecurrenceCase& problem) {
  SCOPED_TRACE(describe(problem.spec));
  const bool bf16 = problem.spec.dtype == DType::bf16;
  const double outputs = bf16 ? 4e-3 : 1e-5;
  const double gradients = bf16 ? 6e-3 : 1e-5;
  const GpuMap map(problem);
  const Reference whole = reference_of(problem);
  const auto error = [](const Tensor& got, const std::vector<double>& expected) {
    return relative_error(to_doubles(got.view()), expected);
  };
  constexpr double kChunk = 64;
  const double chunks = std::ceil(static_cast<double>(problem.spec.tokens) / kChunk);
  EXPECT_LE(error(map.m.get(), oracle_m(problem)), outputs * std::sqrt(chunks)) << "M";
  EXPECT_LE(error(map.n.get(), oracle_n(problem)), outputs) << "N";
  EXPECT_LE(error(map.dn.get(), oracle_dn(problem)), gradients) << "dN";
  EXPECT_LE(error(product_of(map.m, problem.h0, map.n, false), whole.ht), outputs) << "M S + N";
  EXPECT_LE(error(product_of(map.m, problem.d_ht, map.dn, true), whole.dh0), gradients) << "M^T dS + dN";
}

class MapOnGpu : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, MapOnGpu, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST_P(MapOnGpu, EveryRule) {
  QDELTA_NEEDS_DEVICE();
  for (const Rule rule : all_rules()) {
    for (const std::int64_t tokens : {1, 64, 150}) {
      CaseSpec spec;
      spec.rule = rule;
      spec.dtype = GetParam();
      spec.tokens = tokens;
      spec.batch = tokens == 64 ? 2 : 1;
      spec.heads = 2;
      spec.shared = tokens == 64 ? 2 : 1;
      spec.key_dim = 33;
      spec.value_dim = 90;
      check_map(random_case(spec, 51));
    }
  }
}

TEST_P(MapOnGpu, PackedSequences) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec;
  spec.dtype = GetParam();
  spec.tokens = 240;
  spec.cu_seqlens = {0, 1, 1, 170, 240};
  spec.key_dim = 64;
  spec.value_dim = 17;
  check_map(random_case(spec, 52));
}

// So long that it is split, whatever the number of SMs: more than 19 chunks of one head.
TEST_P(MapOnGpu, LongRanges) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec;
  spec.dtype = GetParam();
  spec.tokens = quick() ? 1500 : 5000;
  spec.key_dim = 128;
  spec.value_dim = 96;
  spec.scale = 0.088F;
  spec.lowest_g = -0.02;
  check_map(random_case(spec, 53));
  spec.cu_seqlens = {0, 70, spec.tokens - 5, spec.tokens};
  spec.key_dim = 40;
  check_map(random_case(spec, 54));
}

// More heads than SMs, and no multiple of them.
TEST_P(MapOnGpu, ManyHeads) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec;
  spec.dtype = GetParam();
  spec.batch = 2;
  spec.heads = device_context().sm_count() / 2 + 6;
  spec.tokens = 130;
  spec.key_dim = 64;
  spec.value_dim = 128;
  check_map(random_case(spec, 56));
}

TEST(MapOnGpuArguments, AreChecked) {
  QDELTA_NEEDS_DEVICE();
  CaseSpec spec;
  const RecurrenceCase problem = random_case(spec, 55);
  const DeviceProblem there(problem, {});
  const DeviceTensor apart(DType::f32, spec.states(), {.padding = 3});
  Workspace workspace(Device{1, &device_context()});
  EXPECT_EQ(message_of([&] {
              recurrence_map({1, &device_context()}, {.in = inputs_of(there), .m = {}, .n = apart.view()}, workspace);
            }),
            "n must be contiguous on the GPU");
}

}  // namespace
}  // namespace qdelta::testing
