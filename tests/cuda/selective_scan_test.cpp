// The selective scan on the GPU against its oracle: random shapes and strides, determinism, in place on a pool, and
// step by step.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/device.h"
#include "scan_case.h"

namespace qdelta::testing {
namespace {

double worst[2] = {};
class Report : public ::testing::Environment {
 public:
  void TearDown() override { std::printf("  selective_scan: f32 %.2e, bf16 %.2e\n", worst[0], worst[1]); }
};
const ::testing::Environment* const kReport = ::testing::AddGlobalTestEnvironment(new Report);

Device gpu() {
  Device device;
  device.gpu = &device_context();
  return device;
}

// A case on the GPU. Matrices lie as `place` says, what is not given has no memory.
struct DeviceScan {
  const ScanCase& problem;
  DType dtype;
  DeviceVector<std::int64_t> offsets;
  DeviceTensor x, dt, B, C, z, A_log, skip, dt_bias, h0, dy, d_ht;

  DeviceScan(const ScanCase& c, DType type, const Placement& place)
      : problem(c), dtype(type), offsets(c.shape.offsets) {
    const ScanTensors in(c, type);
    x = DeviceTensor(in.x, place);
    dt = DeviceTensor(in.dt, place);
    B = DeviceTensor(in.B, place);
    C = DeviceTensor(in.C, place);
    if (c.spec.gate) z = DeviceTensor(in.z, place);
    A_log = DeviceTensor(in.A_log);
    skip = DeviceTensor(in.skip);
    dt_bias = DeviceTensor(in.dt_bias);
    dy = DeviceTensor(in.dy, place);
    if (c.spec.initial) h0 = DeviceTensor(in.h0);
    if (c.spec.initial) d_ht = DeviceTensor(in.d_ht);
  }
  [[nodiscard]] SelectiveScanInputs inputs() const {
    return {.x = x.view(),
            .dt = dt.view(),
            .B = B.view(),
            .C = C.view(),
            .z = z.view(),
            .A_log = A_log.view(),
            .skip = skip.view(),
            .dt_bias = dt_bias.view(),
            .h0 = h0.view(),
            .offsets = offsets.span()};
  }
  // Forward and backward; everything written is full of NaN before, and so is the workspace.
  [[nodiscard]] ScanOutputs run(const Placement& place) const {
    const ScanOutputs shapes(problem, dtype);
    const auto like = [&](const Tensor& tensor, const Placement& where) {
      return tensor.data() == nullptr ? DeviceTensor() : DeviceTensor(tensor.dtype(), tensor.shape(), where);
    };
    const DeviceTensor y = like(shapes.y, place);
    const DeviceTensor ht = like(shapes.ht, {});
    const DeviceTensor chunk_states = like(shapes.chunk_states, {});
    const SelectiveScanForward forward{inputs(), y.view(), ht.view(), chunk_states.view()};
    const DeviceMemory memory(selective_scan_workspace(gpu(), inputs(), true));
    Workspace space(memory.bytes());
    selective_scan_forward(gpu(), forward, space);

    const DeviceTensor dx = like(shapes.dx, place);
    const DeviceTensor ddt = like(shapes.ddt, place);
    const DeviceTensor dB = like(shapes.dB, place);
    const DeviceTensor dC = like(shapes.dC, place);
    const DeviceTensor dz = like(shapes.dz, place);
    const DeviceTensor dh0 = like(shapes.dh0, {});
    const DeviceTensor dA_log(shapes.dA_log);  // these are added to
    const DeviceTensor dskip(shapes.dskip);
    const DeviceTensor ddt_bias(shapes.ddt_bias);
    device_context().synchronize();
    memory.fill_with_nan();
    selective_scan_backward(gpu(),
                            {.in = inputs(),
                             .dy = dy.view(),
                             .d_ht = d_ht.view(),
                             .chunk_states = chunk_states.view(),
                             .dx = dx.view(),
                             .ddt = ddt.view(),
                             .dB = dB.view(),
                             .dC = dC.view(),
                             .dz = dz.view(),
                             .dA_log = dA_log.view(),
                             .dskip = dskip.view(),
                             .ddt_bias = ddt_bias.view(),
                             .dh0 = dh0.view()},
                            space);
    ScanOutputs out;
    out.y = y.get();
    out.ht = ht.get();
    out.dx = dx.get();
    out.ddt = ddt.get();
    out.dB = dB.get();
    out.dC = dC.get();
    if (problem.spec.gate) out.dz = dz.get();
    out.dh0 = dh0.get();
    out.dA_log = dA_log.get();
    out.dskip = dskip.get();
    out.ddt_bias = ddt_bias.get();
    return out;
  }
};

// As expect_scan, with what rounding each output to its type costs.
void expect_close(const ScanOutputs& got, const ScanCase& problem, double tolerance_f32 = 5e-6) {
  const std::vector<std::vector<double>> expected = expected_scan(problem);
  const auto all = got.all();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].second->data() == nullptr && expected[i].empty()) continue;
    const bool narrow = all[i].second->dtype() == DType::bf16;
    const double tolerance = narrow ? 4e-3 : tolerance_f32 * (expected[i].size() < 20 ? 20 : 1);
    const double error = relative_error(all[i].second->view(), expected[i]);
    if (expected[i].size() >= 20) worst[narrow ? 1 : 0] = std::max(worst[narrow ? 1 : 0], error);
    EXPECT_LT(error, tolerance) << all[i].first;
  }
}

TEST(CudaSelectiveScan, MeetsTheOracleOnRandomShapes) {
  QDELTA_NEEDS_DEVICE();
  Random random(21);
  for (int round = 0; round < 60; ++round) {
    ScanSpec spec = random_scan_spec(random);
    spec.dtype = chance(random, 0.5) ? DType::bf16 : DType::f32;
    const Placement place = chance(random, 0.5) ? Placement{} : Placement{random.integer(0, 9), random.integer(0, 9)};
    SCOPED_TRACE(describe(spec) + (spec.dtype == DType::bf16 ? ", bf16" : ""));
    const ScanCase problem = random_scan(spec, 300 + static_cast<std::uint64_t>(round));
    const DeviceScan on_gpu(problem, spec.dtype, place);
    expect_close(on_gpu.run(place), problem);
  }
}

TEST(CudaSelectiveScan, ManySequencesAndALongOne) {
  QDELTA_NEEDS_DEVICE();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ScanSpec spec;
    spec.dtype = dtype;
    spec.channels = 300;
    spec.lengths.assign(90, 7);
    const ScanCase many = random_scan(spec, 31);
    expect_close(DeviceScan(many, dtype, {}).run({}), many);
    spec.channels = 40;
    spec.lengths = {5000};
    spec.dt_low = -9;  // long memories
    spec.dt_high = -3;
    const ScanCase one = random_scan(spec, 32);
    expect_close(DeviceScan(one, dtype, {}).run({}), one, 3e-5);  // rounding of thousands of decays adds up
  }
}

TEST(CudaSelectiveScan, ExtremeStepsStayFinite) {
  QDELTA_NEEDS_DEVICE();
  for (const auto& [low, high] : {std::pair(-200.0, -90.0), {50.0, 1000.0}, {-200.0, 200.0}}) {
    ScanSpec spec;
    spec.lengths = {70, 5};
    spec.dt_low = low;
    spec.dt_high = high;
    const ScanCase problem = random_scan(spec, 33);
    const ScanOutputs out = DeviceScan(problem, DType::f32, {}).run({});
    for (const auto& [name, tensor] : out.all()) EXPECT_TRUE(all_finite(to_doubles(tensor->view()))) << name;
    EXPECT_LT(relative_error(out.y.view(), expected_scan(problem)[0]), 1e-5);
  }
}

TEST(CudaSelectiveScan, IsDeterministic) {
  QDELTA_NEEDS_DEVICE();
  ScanSpec spec;
  spec.channels = 600;
  spec.lengths = {200, 33, 0, 1, 500};
  spec.dtype = DType::bf16;
  const ScanCase problem = random_scan(spec, 34);
  const DeviceScan on_gpu(problem, DType::bf16, {});
  const ScanOutputs first = on_gpu.run({});
  for (int round = 0; round < 3; ++round) {
    const ScanOutputs again = on_gpu.run({});
    for (std::size_t i = 0; i < first.all().size(); ++i) {
      EXPECT_TRUE(same_bits(*first.all()[i].second, *again.all()[i].second)) << first.all()[i].first;
    }
  }
}

// Rows [begin, begin + count) of a matrix.
template <class View>
View rows(View view, std::int64_t begin, std::int64_t count) {
  view.data += begin * view.step(0) * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape.extent[0] = count;
  return view;
}

// The first tokens of every sequence at once, in place on a pool, then single tokens of all of them; a row without a
// state gets zeros.
TEST(CudaSelectiveScan, PrefillAndStepsEqualTheSequence) {
  QDELTA_NEEDS_DEVICE();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t N : {3, 16, 40}) {
      ScanSpec spec;
      spec.dtype = dtype;
      spec.channels = 77;
      spec.states = N;
      spec.lengths = {90};
      const ScanCase problem = random_scan(spec, 35);
      const ScanOracleOutputs<double> expected = scan_oracle_forward(problem.shape, problem.in);
      const DeviceScan on_gpu(problem, dtype, {});
      const SelectiveScanInputs in = on_gpu.inputs();
      // Slot 1 of 3; the others are zeros and stay so.
      Tensor pool0(DType::f32, {3, N, 77});
      std::copy_n(ScanTensors(problem).h0.data(), pool0.bytes() / 3, pool0.data() + pool0.bytes() / 3);
      const DeviceTensor pool(pool0);
      const DeviceTensor y(dtype, {90, 77});
      const std::int64_t first = 70;
      SelectiveScanForward forward{in, rows(y.view(), 0, first), {}, {}};
      forward.in.x = rows(in.x, 0, first);
      forward.in.dt = rows(in.dt, 0, first);
      forward.in.B = rows(in.B, 0, first);
      forward.in.C = rows(in.C, 0, first);
      forward.in.z = rows(in.z, 0, first);
      const DeviceVector<std::int64_t> offsets({0, first});
      forward.in.offsets = offsets.span();
      forward.ht = TensorView(pool.view().data + pool0.bytes() / 3, DType::f32, {1, N, 77});
      forward.in.h0 = forward.ht;
      const DeviceMemory memory(selective_scan_workspace(gpu(), forward.in, false));
      Workspace space(memory.bytes());
      selective_scan_forward(gpu(), forward, space);
      const DeviceVector<std::int64_t> slot(std::vector<std::int64_t>{1});
      const DeviceVector<std::int64_t> nowhere(std::vector<std::int64_t>{-1});
      const auto step = [&](std::int64_t t, const DeviceVector<std::int64_t>& index, const TensorView& to) {
        selective_scan_step(
            gpu(), {rows(in.x, t, 1), rows(in.dt, t, 1), rows(in.B, t, 1), rows(in.C, t, 1), rows(in.z, t, 1), in.A_log,
                    in.skip, in.dt_bias, pool.view(),
                    ConstTensorView(reinterpret_cast<const std::byte*>(index.span().data()), DType::i64, {1}), to});
      };
      const DeviceTensor none(dtype, {1, 77});
      for (std::int64_t t = first; t < 90; ++t) {
        step(t, nowhere, none.view());
        step(t, slot, rows(y.view(), t, 1));
      }
      EXPECT_LT(relative_error(y.get().view(), expected.y), dtype == DType::bf16 ? 4e-3 : 5e-6);
      for (const double value : to_doubles(none.get().view())) EXPECT_EQ(value, 0);
      const std::vector<double> states = to_doubles(pool.get().view());
      const auto size = static_cast<std::ptrdiff_t>(N * 77);
      EXPECT_LT(relative_error(std::vector<double>(states.begin() + size, states.begin() + 2 * size), expected.ht),
                5e-6);
      EXPECT_TRUE(std::all_of(states.begin(), states.begin() + size, [](double v) { return v == 0; }));
      EXPECT_TRUE(std::all_of(states.begin() + 2 * size, states.end(), [](double v) { return v == 0; }));
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
