// The selective scan on the CPU against its oracle, and against itself: step by step, in pieces, on any number of
// threads and every instruction set.
#include <gtest/gtest.h>

// As the engine is compiled: the sets between the baseline, AVX2 and AVX-512 are left out.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/targets.h>

#include "io/safetensors.h"
#include "scan_case.h"

namespace qdelta::testing {
namespace {

constexpr double kTolerance = 2e-6;

TEST(SelectiveScan, MeetsTheOracleOnRandomShapes) {
  Random random(1);
  for (int round = 0; round < (quick() ? 10 : 40); ++round) {
    const ScanSpec spec = random_scan_spec(random);
    SCOPED_TRACE(describe(spec));
    const ScanCase problem = random_scan(spec, 100 + static_cast<std::uint64_t>(round));
    expect_scan(run_scan(problem, {2}), problem, kTolerance);
  }
}

// Recorded from another implementation, tests/golden/make_mamba.py.
TEST(SelectiveScan, MeetsTheGoldenCase) {
  const SafetensorsFile file = SafetensorsFile::open(std::string(QDELTA_GOLDEN_DIR) + "/scan/mamba.safetensors");
  const auto values = [&](const std::string& name) { return to_doubles(file.view(name)); };
  ScanCase golden;
  golden.in = {values("x"),     values("dt"),   values("B"),       values("C"), values("z"),
               values("A_log"), values("skip"), values("dt_bias"), values("h0")};
  golden.dy = values("dy");
  golden.d_ht = values("d_ht");
  golden.shape = {integers_of(file.view("offsets"), "offsets"), file.view("x").extent(1), file.view("B").extent(1)};
  golden.spec.channels = golden.shape.channels;
  const std::vector<std::vector<double>> expected{values("y"),         values("ht"),          values("grad.x"),
                                                  values("grad.dt"),   values("grad.B"),      values("grad.C"),
                                                  values("grad.z"),    values("grad.h0"),     values("grad.A_log"),
                                                  values("grad.skip"), values("grad.dt_bias")};
  const std::vector<std::vector<double>> oracle = expected_scan(golden);
  const ScanOutputs got = run_scan(golden, {2});
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(relative_error(oracle[i], expected[i]), 1e-13) << got.all()[i].first;
    EXPECT_LT(relative_error(got.all()[i].second->view(), expected[i]), kTolerance) << got.all()[i].first;
  }
}

TEST(SelectiveScan, WithoutTokensTheStateIsHandedOn) {
  ScanSpec spec;
  spec.lengths = {0, 0};
  const ScanCase problem = random_scan(spec, 2);
  const ScanOutputs out = run_scan(problem, {2});
  EXPECT_TRUE(same_bits(out.ht, ScanTensors(problem).h0));
  EXPECT_TRUE(same_bits(out.dh0, ScanTensors(problem).d_ht));
  for (const float value : out.dA_log.as<float>()) EXPECT_EQ(value, 0.0F);
}

TEST(SelectiveScan, LongSequencesStayExact) {
  ScanSpec spec;
  spec.lengths = {1000};
  spec.channels = 17;
  spec.dt_low = -9;  // long memories
  spec.dt_high = -4;
  const ScanCase problem = random_scan(spec, 3);
  expect_scan(run_scan(problem, {1}), problem, 1e-5);
}

TEST(SelectiveScan, InstructionSetsAgree) {
  ScanSpec spec;
  spec.lengths = {1, 45, 0, 33};
  spec.channels = 37;
  const ScanCase problem = random_scan(spec, 5);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(hwy::SupportedTargets() & ~(target - 1));
    expect_scan(run_scan(problem, {2}), problem, kTolerance);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

TEST(SelectiveScan, ThreadsDoNotChangeABit) {
  ScanSpec spec;
  spec.lengths = {70, 3, 0, 41, 1, 90};
  spec.channels = 300;
  const ScanCase problem = random_scan(spec, 6);
  const ScanOutputs one = run_scan(problem, {1});
  for (const int threads : {2, 3, 5}) {
    const ScanOutputs many = run_scan(problem, {threads});
    for (std::size_t i = 0; i < one.all().size(); ++i) {
      EXPECT_TRUE(same_bits(*one.all()[i].second, *many.all()[i].second)) << one.all()[i].first;
    }
  }
}

// Rows [begin, end) of a matrix, and matrices inside wider ones.
ConstTensorView rows(const Tensor& matrix, std::int64_t begin, std::int64_t end) {
  ConstTensorView view = matrix.view();
  view.data += begin * view.step(0) * static_cast<std::int64_t>(sizeof(float));
  view.shape.extent[0] = end - begin;
  return view;
}
TensorView rows(Tensor& matrix, std::int64_t begin, std::int64_t end) {
  const ConstTensorView view = rows(std::as_const(matrix), begin, end);
  TensorView out(const_cast<std::byte*>(view.data), view.dtype, view.shape);
  out.stride = view.stride;
  return out;
}

SelectiveScanInputs part(const ScanTensors& in, std::int64_t begin, std::int64_t end,
                         std::span<const std::int64_t> offsets) {
  SelectiveScanInputs out = in.inputs(offsets);
  out.x = rows(in.x, begin, end);
  out.dt = rows(in.dt, begin, end);
  out.B = rows(in.B, begin, end);
  out.C = rows(in.C, begin, end);
  out.z = rows(in.z, begin, end);
  return out;
}

TEST(SelectiveScan, PiecesAndStepsGiveTheBitsOfTheWhole) {
  ScanSpec spec;
  spec.lengths = {75};
  spec.channels = 45;
  const ScanCase problem = random_scan(spec, 7);
  const ScanTensors in(problem);
  const ScanOutputs whole = run_scan(problem, {2});

  // In place on slot 2 of a pool of four: 40 tokens at once, then one by one.
  Tensor y = nan_tensor({75, 45});
  Tensor pool = nan_tensor({4, 16, 45});
  std::copy_n(in.h0.data(), in.h0.bytes(), pool.data() + 2 * in.h0.bytes());
  const std::vector<std::int64_t> offsets{0, 40};
  SelectiveScanForward forward{part(in, 0, 40, offsets), rows(y, 0, 40), {}, {}};
  forward.in.h0 = forward.ht = TensorView(pool.data() + 2 * in.h0.bytes(), DType::f32, {1, 16, 45});
  Workspace none{std::span<std::byte>()};
  selective_scan_forward({2}, forward, none);
  std::int64_t slot = 2;
  for (std::int64_t t = 40; t < 75; ++t) {
    const SelectiveScanInputs at = part(in, t, t + 1, {});
    selective_scan_step(
        {2}, {at.x, at.dt, at.B, at.C, at.z, at.A_log, at.skip, at.dt_bias, pool.view(),
              ConstTensorView(reinterpret_cast<const std::byte*>(&slot), DType::i64, {1}), rows(y, t, t + 1)});
  }
  EXPECT_TRUE(same_bits(y, whole.y));
  EXPECT_EQ(std::memcmp(pool.data() + 2 * in.h0.bytes(), whole.ht.data(), whole.ht.bytes()), 0);
  for (const std::size_t other : {0, 1, 3}) {
    for (std::size_t i = 0; i < in.h0.bytes(); ++i) ASSERT_EQ(pool.data()[other * in.h0.bytes() + i], std::byte{0xff});
  }
}

TEST(SelectiveScan, GradientsFlowThroughASplit) {
  ScanSpec spec;
  spec.lengths = {83};
  spec.channels = 21;
  const ScanCase whole = random_scan(spec, 8);
  const ScanOutputs expected = run_scan(whole, {2});
  // The second part first: its gradient of h0 is the first part's of ht.
  const std::int64_t cut = 50;
  const auto cut_case = [&](std::int64_t begin, std::int64_t end) {
    ScanCase piece = whole;
    piece.shape.offsets = {0, end - begin};
    const auto keep = [&](std::vector<double>& values, std::int64_t width) {
      values = {values.begin() + begin * width, values.begin() + end * width};
    };
    for (std::vector<double>* wide : {&piece.in.x, &piece.in.dt, &piece.in.z, &piece.dy}) keep(*wide, 21);
    for (std::vector<double>* narrow : {&piece.in.B, &piece.in.C}) keep(*narrow, 16);
    return piece;
  };
  ScanCase first = cut_case(0, cut);
  ScanCase second = cut_case(cut, 83);
  first.d_ht.clear();
  second.in.h0 = to_doubles(run_scan(
                                [&] {
                                  ScanCase c = first;
                                  c.d_ht.assign(16 * 21, 0);
                                  return c;
                                }(),
                                {1})
                                .ht.view());
  const ScanOutputs late = run_scan(second, {2});
  first.d_ht = to_doubles(late.dh0.view());
  const ScanOutputs early = run_scan(first, {2});
  EXPECT_LT(relative_error(early.dh0.view(), to_doubles(expected.dh0.view())), kTolerance);
  std::vector<double> joined = to_doubles(early.dx.view());
  const std::vector<double> rest = to_doubles(late.dx.view());
  joined.insert(joined.end(), rest.begin(), rest.end());
  EXPECT_LT(relative_error(joined, to_doubles(expected.dx.view())), kTolerance);
}

TEST(SelectiveScan, ParameterGradientsAreAddedTo) {
  const ScanCase problem = random_scan({}, 9);
  const ScanTensors in(problem);
  ScanOutputs once = run_scan(problem, {1});
  ScanOutputs twice = run_scan(problem, {1});
  SelectiveScanBackward backward{in.inputs(problem.shape.offsets),
                                 in.dy.view(),
                                 in.d_ht.view(),
                                 twice.chunk_states.view(),
                                 twice.dx.view(),
                                 twice.ddt.view(),
                                 twice.dB.view(),
                                 twice.dC.view(),
                                 twice.dz.view(),
                                 twice.dA_log.view(),
                                 twice.dskip.view(),
                                 twice.ddt_bias.view(),
                                 twice.dh0.view()};
  Workspace workspace{Device{}};
  selective_scan_backward({1}, backward, workspace);
  EXPECT_TRUE(same_bits(once.dx, twice.dx));
  for (const auto& [a, b] : {std::pair(&once.dA_log, &twice.dA_log), {&once.dskip, &twice.dskip}}) {
    for (std::size_t i = 0; i < a->as<float>().size(); ++i) EXPECT_EQ(2 * a->as<float>()[i], b->as<float>()[i]);
  }
}

TEST(SelectiveScan, ExtremeStepsStayFinite) {
  // dt far below (nothing is written, nothing forgotten) and far above (all is forgotten).
  for (const auto& [low, high] : {std::pair(-200.0, -90.0), {50.0, 1000.0}, {-200.0, 200.0}}) {
    ScanSpec spec;
    spec.lengths = {40, 5};
    spec.dt_low = low;
    spec.dt_high = high;
    const ScanCase problem = random_scan(spec, 11);
    const ScanOutputs out = run_scan(problem, {2});
    SCOPED_TRACE(low);
    for (const auto& [name, tensor] : out.all()) EXPECT_TRUE(all_finite(to_doubles(tensor->view()))) << name;
    const std::vector<std::vector<double>> expected = expected_scan(problem);
    EXPECT_LT(relative_error(out.y.view(), expected[0]), 1e-5);
    EXPECT_LT(relative_error(out.ht.view(), expected[1]), 1e-5);
    EXPECT_LT(relative_error(out.dx.view(), expected[2]), 1e-5);
    EXPECT_LT(relative_error(out.dB.view(), expected[4]), 1e-5);
  }
}

TEST(SelectiveScan, WrongArgumentsAreNamed) {
  const ScanCase problem = random_scan({}, 12);
  const ScanTensors in(problem);
  ScanOutputs out(problem);
  const SelectiveScanForward right{in.inputs(problem.shape.offsets), out.y.view(), out.ht.view(),
                                   out.chunk_states.view()};
  const auto wrong = [&](const std::vector<std::string>& pieces, const auto& change) {
    SelectiveScanForward args = right;
    change(args);
    expect_error(Status::invalid_argument, pieces, [&] {
      Workspace none{std::span<std::byte>()};
      selective_scan_forward({1}, args, none);
      return 0;
    });
  };
  wrong({"x"}, [](auto& args) { args.in.x = {}; });
  wrong({"dt", "[40, 16]"}, [](auto& args) { args.in.dt = args.in.B; });
  wrong({"A_log"}, [](auto& args) { args.in.A_log = {}; });
  wrong({"ht", "[1, 16, 20]"}, [](auto& args) { args.ht = args.y; });
  wrong({"chunk_states"}, [](auto& args) { args.chunk_states = args.ht; });
  wrong({"offsets", "39"}, [](auto& args) {
    static const std::vector<std::int64_t> offsets{0, 39};
    args.in.offsets = offsets;
  });
  wrong({"decrease"}, [&](auto& args) {
    static const std::vector<std::int64_t> offsets{0, 41, 40};
    args.in.offsets = offsets;
    args.in.h0 = {};
    args.ht = {};
  });
  Tensor wide(DType::f32, {20, kMaxScanStates + 1});
  wrong({"65 states"}, [&](auto& args) { args.in.A_log = wide.view(); });
  const std::int64_t slot = 1;
  expect_error(Status::invalid_argument, {"no state 1 in a pool of 1"}, [&] {
    const SelectiveScanInputs at = part(in, 0, 1, {});
    selective_scan_step(
        {1}, {at.x, at.dt, at.B, at.C, at.z, at.A_log, at.skip, at.dt_bias, out.ht.view(),
              ConstTensorView(reinterpret_cast<const std::byte*>(&slot), DType::i64, {1}), rows(out.y, 0, 1)});
    return 0;
  });
}

}  // namespace
}  // namespace qdelta::testing
