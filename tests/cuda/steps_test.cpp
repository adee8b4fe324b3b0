// Steps of a model in few launches (kernels/steps.h) on the GPU, against the ops that they consist of on the CPU, in
// float32: their bfloat16 activations may differ by some of their rounding.
#include "kernels/cuda/steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "cuda/device.h"
#include "kernels/overlapped_launches.h"
#include "kernels/recurrence_case.h"
#include "kernels/row_blocks.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

constexpr double kTolerance = 1.2e-2;
constexpr double kTimesTheOps = 1.5;  // where the ops one by one, in bfloat16, are not so near: of their error

// Random tensors, the same on both devices: there as the case has them, here in float32.
class StepCase {
 public:
  explicit StepCase(std::uint64_t seed) : random_(seed) {}

  struct Both {
    Tensor here;
    DeviceTensor there;
  };
  const Both& add(DType dtype, const Shape& shape, double low, double high) {
    const Tensor values = random_tensor(random_, dtype, shape, low, high);
    return all_.emplace_back(converted(values.view(), DType::f32), DeviceTensor(values));
  }
  // What passes from op to op: full of NaN on the GPU.
  const Both& between(DType dtype, const Shape& shape) {
    return all_.emplace_back(Tensor(DType::f32, shape), DeviceTensor(dtype, shape));
  }

 private:
  Random random_;
  std::deque<Both> all_;
};

TensorView here(const StepCase::Both& both) { return const_cast<Tensor&>(both.here).view(); }

double error_of(const StepCase::Both& both) {
  return relative_error(both.there.get().view(), to_doubles(both.here.view()));
}

void expect_near(const StepCase::Both& both, const char* what, double error_of_ops = 0) {
  EXPECT_LT(error_of(both), std::max(kTolerance, kTimesTheOps * error_of_ops)) << what;
}

template <class Byte>
BasicView<Byte> columns(const BasicView<Byte>& matrix, std::int64_t begin, std::int64_t width) {
  BasicView<Byte> view = matrix;
  view.data += begin * static_cast<std::int64_t>(size_of(matrix.dtype));
  view.shape = {matrix.extent(0), width};
  return view;
}

struct MixerSizes {
  std::int64_t rows, hidden, heads, K, V;
  std::int64_t taps = 4;
  Rule rule = Rule::q_delta;
  bool gate = true;
  GateActivation activation = GateActivation::silu;
};

class MixerStepCase : public StepCase {
 public:
  MixerStepCase(const MixerSizes& sizes, std::uint64_t seed)
      : StepCase(seed),
        n(sizes),
        channels(n.heads * (2 * n.K + n.V)),
        projected_width(round_up(channels + n.heads * (n.V + 3), 8)),
        x(add(kF32, {n.rows, n.hidden}, -1, 1)),
        norm(add(kF32, {n.hidden}, 0.5, 1.5)),
        w(add(kBF16, {projected_width, n.hidden}, -0.2, 0.2)),
        conv(add(kF32, {channels, n.taps}, -1, 1)),
        conv_state(add(kF32, {n.rows + 2, n.taps - 1, channels}, -1, 1)),
        A_log(add(kF32, {n.heads}, -1, 1)),
        dt_bias(add(kF32, {n.heads}, -1, 1)),
        states(add(kF32, {n.rows + 2, n.heads, n.K, n.V}, -1, 1)),
        out_norm(add(kF32, {n.V}, 0.5, 1.5)),
        out_w(add(kBF16, {n.hidden, n.heads * n.V}, -0.2, 0.2)),
        normed(between(kBF16, {n.rows, n.hidden})),
        projected(between(kBF16, {n.rows, projected_width})),
        qkv(between(kBF16, {n.rows, channels})),
        g(between(kF32, {n.rows, n.heads})),
        beta(between(kF32, {n.rows, n.heads})),
        lambda(between(kF32, {n.rows, n.heads})),
        o(between(kBF16, {n.rows, n.heads * n.V})),
        head_out(between(kBF16, {n.rows, n.heads * n.V})),
        out(between(kF32, {n.rows, n.hidden})),
        slots_here(slots_of(n.rows)),
        slots_there(slots_here),
        offsets_here(offsets_of(n.rows)),
        offsets_there(offsets_here) {}

  template <class View>
  [[nodiscard]] MixerStep args(const View& at, std::span<const std::int64_t> slots,
                               std::span<const std::int64_t> offsets) const {
    const std::int64_t keys = n.heads * n.K;
    const std::int64_t values = n.heads * n.V;
    const auto heads = [&](const TensorView& matrix, std::int64_t begin, std::int64_t width) {
      TensorView view = columns(matrix, begin, n.heads * width);
      view.shape = {n.rows, n.heads, width};
      view.stride = {matrix.step(0), width, 1};
      return view;
    };
    const auto gates_at = [&](int which) {
      return columns(at(projected), channels + values + which * n.heads, n.heads);
    };
    MixerStep m;
    m.norm = {.x = at(x), .weight = at(norm), .y = at(normed), .inverse_rms = {}};
    m.project = {.x = at(normed), .w = at(w), .y = at(projected), .add = {}};
    m.conv = {.x = columns(at(projected), 0, channels),
              .weight = at(conv),
              .y = at(qkv),
              .offsets = offsets,
              .state = at(conv_state),
              .slots = slots,
              .bias = {}};
    m.gates.a = gates_at(0);
    m.gates.b = gates_at(1);
    m.gates.l = gates_at(2);
    m.gates.A_log = at(A_log);
    m.gates.dt_bias = at(dt_bias);
    m.gates.constant_lambda_bias = -0.8F;
    m.gates.g = at(g);
    m.gates.beta = at(beta);
    m.gates.lambda = at(lambda);
    m.gates.step_is_beta = n.rule == Rule::mamba2;
    if (m.gates.step_is_beta) m.gates.b = {};
    m.recurrence.rule = n.rule;
    m.recurrence.scale = 1.0F / std::sqrt(static_cast<float>(n.K));
    m.recurrence.qk_l2norm = true;
    m.recurrence.q = heads(at(qkv), 0, n.K);
    m.recurrence.k = heads(at(qkv), keys, n.K);
    m.recurrence.v = heads(at(qkv), 2 * keys, n.V);
    m.recurrence.g = at(g);
    m.recurrence.beta = at(beta);
    m.recurrence.lambda = at(lambda);
    m.recurrence.states = at(states);
    m.recurrence.index = {reinterpret_cast<const std::byte*>(slots.data()), DType::i64, {n.rows}};
    m.recurrence.o = heads(at(o), 0, n.V);
    m.out_norm = {.x = at(o),
                  .gate = n.gate ? columns(at(projected), channels, values) : TensorView(),
                  .weight = at(out_norm),
                  .y = at(head_out),
                  .activation = n.activation};
    m.out = {.x = at(head_out), .w = at(out_w), .y = at(out), .add = at(x)};
    return m;
  }
  [[nodiscard]] MixerStep args_here() const {
    return args([](const Both& both) { return here(both); }, slots_here, offsets_here);
  }
  [[nodiscard]] MixerStep args_there() const {
    return args([](const Both& both) { return both.there.view(); }, slots_there.span(), offsets_there.span());
  }

  MixerSizes n;
  std::int64_t channels, projected_width;
  const Both &x, &norm, &w, &conv, &conv_state, &A_log, &dt_bias, &states, &out_norm, &out_w;
  const Both &normed, &projected, &qkv, &g, &beta, &lambda, &o, &head_out, &out;
  std::vector<std::int64_t> slots_here;
  DeviceVector<std::int64_t> slots_there;
  std::vector<std::int64_t> offsets_here;
  DeviceVector<std::int64_t> offsets_there;

 private:
  static constexpr DType kF32 = DType::f32, kBF16 = DType::bf16;
  // Backwards, from a state that no row has.
  static std::vector<std::int64_t> slots_of(std::int64_t rows) {
    std::vector<std::int64_t> slots;
    for (std::int64_t r = 0; r < rows; ++r) slots.push_back(rows - r);
    return slots;
  }
  static std::vector<std::int64_t> offsets_of(std::int64_t rows) {
    std::vector<std::int64_t> offsets;
    for (std::int64_t r = 0; r <= rows; ++r) offsets.push_back(r);
    return offsets;
  }
};

// As mixer_step() is where nothing fits.
void run_ops(const Device& device, const MixerStep& args, Workspace& workspace) {
  rms_norm_forward(device, args.norm);
  linear_forward(device, args.project);
  short_conv_forward(device, args.conv, workspace);
  gates_forward(device, args.gates);
  recurrence_step(device, args.recurrence, workspace);
  gated_norm_forward(device, args.out_norm);
  linear_forward(device, args.out);
}

void expect_mixer_step(const MixerSizes& sizes) {
  SCOPED_TRACE(::testing::Message() << sizes.rows << " rows, " << sizes.hidden << " wide, " << sizes.heads
                                    << " heads of " << sizes.K << " x " << sizes.V << ", " << sizes.taps << " taps");
  const MixerStepCase problem(sizes, 91);
  const MixerStepCase by_ops(sizes, 91);
  const Device cpu{.threads = 1};
  const Device gpu{.threads = 1, .gpu = &device_context(), .activations = DType::bf16};
  Workspace workspace(cpu);
  Workspace gpu_workspace(gpu);
  for (int token = 0; token < 3; ++token) {
    mixer_step(cpu, problem.args_here(), workspace);
    mixer_step(cpu, by_ops.args_here(), workspace);
    run_ops(gpu, by_ops.args_there(), gpu_workspace);
    {
      const OverlappedLaunches overlapped;
      ASSERT_TRUE(cuda::mixer_step(device_context(), problem.args_there()));
    }
    expect_near(problem.out, "out", error_of(by_ops.out));
    expect_near(problem.conv_state, "the convolution's state", error_of(by_ops.conv_state));
    expect_near(problem.states, "states", error_of(by_ops.states));
  }
}

TEST(StepsOnGpu, MixerOfFewRows) {
  QDELTA_NEEDS_DEVICE();
  expect_mixer_step({.rows = 1, .hidden = 64, .heads = 2, .K = 16, .V = 32});
  expect_mixer_step({.rows = 3, .hidden = 48, .heads = 3, .K = 24, .V = 40});
  expect_mixer_step({.rows = 8, .hidden = 136, .heads = 2, .K = 32, .V = 64, .rule = Rule::gated_delta});
  expect_mixer_step({.rows = 5, .hidden = 32, .heads = 2, .K = 16, .V = 16, .taps = 2, .rule = Rule::mamba2});
  expect_mixer_step({.rows = 2, .hidden = 72, .heads = 1, .K = 8, .V = 8, .taps = 1, .gate = false});
  expect_mixer_step({.rows = 1, .hidden = 1032, .heads = 1, .K = 128, .V = 512, .activation = GateActivation::sigmoid});
}

TEST(StepsOnGpu, MixerOfManyRows) {
  QDELTA_NEEDS_DEVICE();
  expect_mixer_step({.rows = 130, .hidden = 72, .heads = 2, .K = 16, .V = 32});
  expect_mixer_step({.rows = 40, .hidden = 520, .heads = 3, .K = 64, .V = 128});
  expect_mixer_step({.rows = 9, .hidden = 64, .heads = 2, .K = 16, .V = 32});
  expect_mixer_step({.rows = 11, .hidden = 48, .heads = 2, .K = 24, .V = 40, .rule = Rule::gated_delta});
  expect_mixer_step({.rows = 10, .hidden = 32, .heads = 1, .K = 128, .V = 256, .activation = GateActivation::sigmoid});
  expect_mixer_step({.rows = 9, .hidden = 32, .heads = 1, .K = 192, .V = 72, .taps = 3, .rule = Rule::mamba2});
  expect_mixer_step({.rows = 9, .hidden = 32, .heads = 1, .K = 256, .V = 512, .taps = 2, .gate = false});
}

// A row without a state counts for nothing, and the state of no other row changes.
TEST(StepsOnGpu, RowsWithoutAState) {
  QDELTA_NEEDS_DEVICE();
  for (const std::int64_t rows : {4, 12}) {
    const MixerStepCase problem({.rows = rows, .hidden = 64, .heads = 2, .K = 16, .V = 32}, 92);
    std::vector<std::int64_t> slots(static_cast<std::size_t>(rows), -1);
    slots[1] = 2;
    const DeviceVector<std::int64_t> there(slots);
    MixerStep args = problem.args_there();
    args.conv.slots = there.span();
    args.recurrence.index.data = reinterpret_cast<const std::byte*>(there.span().data());
    ASSERT_TRUE(cuda::mixer_step(device_context(), args));
    const Tensor out = problem.out.there.get();
    const std::span<const float> x = problem.x.here.as<float>();
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(out.as<float>()[i], x[i]);
    for (const auto& [both, size] : {std::pair<const StepCase::Both*, std::size_t>{&problem.states, 2 * 16 * 32},
                                     {&problem.conv_state, static_cast<std::size_t>(3 * problem.channels)}}) {
      const Tensor after = both->there.get();
      for (std::size_t i = 0; i < after.as<float>().size(); ++i) {
        if (i / size == 2) continue;
        ASSERT_EQ(after.as<float>()[i], both->here.as<float>()[i]) << i / size;
      }
      EXPECT_FALSE(std::ranges::equal(after.as<float>().subspan(2 * size, size),
                                      both->here.as<float>().subspan(2 * size, size)));
    }
  }
}

struct MlpSizes {
  std::int64_t rows, hidden, width;
};

class MlpStepCase : public StepCase {
 public:
  MlpStepCase(const MlpSizes& sizes, std::uint64_t seed)
      : StepCase(seed),
        n(sizes),
        x(add(DType::f32, {n.rows, n.hidden}, -1, 1)),
        norm(add(DType::f32, {n.hidden}, 0.5, 1.5)),
        gate_up_w(add(DType::bf16, {2 * n.width, n.hidden}, -0.2, 0.2)),
        down_w(add(DType::bf16, {n.hidden, n.width}, -0.2, 0.2)),
        normed(between(DType::bf16, {n.rows, n.hidden})),
        gate_up(between(DType::bf16, {n.rows, 2 * n.width})),
        hidden(between(DType::bf16, {n.rows, n.width})),
        out(between(DType::f32, {n.rows, n.hidden})) {}

  template <class View>
  [[nodiscard]] MlpStep args(const View& at) const {
    return {.norm = {.x = at(x), .weight = at(norm), .y = at(normed), .inverse_rms = {}},
            .gate_up = {.x = at(normed), .w = at(gate_up_w), .y = at(gate_up), .add = {}},
            .swiglu = {.gate = columns(at(gate_up), 0, n.width),
                       .up = columns(at(gate_up), n.width, n.width),
                       .y = at(hidden)},
            .down = {.x = at(hidden), .w = at(down_w), .y = at(out), .add = at(x)}};
  }

  MlpSizes n;
  const Both &x, &norm, &gate_up_w, &down_w, &normed, &gate_up, &hidden, &out;
};

TensorView there(const StepCase::Both& both) { return both.there.view(); }

TEST(StepsOnGpu, Mlp) {
  QDELTA_NEEDS_DEVICE();
  for (const MlpSizes& sizes : {MlpSizes{1, 64, 40},
                                {8, 72, 136},
                                {4, 1024, 8},
                                {2, 8, 2056},
                                {7, 40, 4232},
                                {1, 2056, 16},
                                {9, 64, 40},
                                {33, 72, 136},
                                {128, 1024, 1032},
                                {65, 8, 2056},
                                {300, 40, 264},
                                {17, 2816, 16}}) {
    SCOPED_TRACE(::testing::Message() << sizes.rows << " x " << sizes.hidden << ", " << sizes.width);
    const MlpStepCase problem(sizes, 93);
    const OverlappedLaunches overlapped;
    mlp_step({.threads = 1}, problem.args(here));
    ASSERT_TRUE(cuda::mlp_step(device_context(), problem.args(there)));
    expect_near(problem.out, "out");
    // The head is a norm and a product, too, without anything behind it.
    const MlpStep args = problem.args(there);
    ASSERT_TRUE(cuda::head_step(device_context(), {.norm = args.norm, .head = args.gate_up}));
    expect_near(problem.gate_up, "gate and up");
  }
}

// Rows of which 16 bytes cannot be read at a time.
TEST(StepsOnGpu, WhatDoesNotFitIsLeftToTheOps) {
  QDELTA_NEEDS_DEVICE();
  for (const MlpSizes& sizes : {MlpSizes{9, 36, 40}, {2, 36, 40}, {2, 64, 36}}) {
    const MlpStepCase problem(sizes, 94);
    EXPECT_FALSE(cuda::mlp_step(device_context(), problem.args(there)));
    const Device gpu{.threads = 1, .gpu = &device_context(), .activations = DType::bf16};
    mlp_step({.threads = 1}, problem.args(here));
    mlp_step(gpu, problem.args(there));
    expect_near(problem.out, "out");
  }
}

// The bits of a row do not depend on the rows beside it ---------------------------------------------------------------

// `rows` rows of a matrix from r on; nothing of what is missing.
template <class View>
View rows_of(View view, std::int64_t r, std::int64_t rows) {
  if (!view) return view;
  view.data += r * view.step(0) * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape.extent[0] = rows;
  return view;
}

MlpStep rows_of(const MlpStep& all, std::int64_t r, std::int64_t rows) {
  MlpStep some = all;
  const auto cut = [&](auto&... views) { ((views = rows_of(views, r, rows)), ...); };
  cut(some.norm.x, some.norm.y, some.gate_up.x, some.gate_up.y, some.swiglu.gate, some.swiglu.up, some.swiglu.y);
  cut(some.down.x, some.down.y, some.down.add);
  return some;
}

MixerStep rows_of(const MixerStep& all, std::int64_t r, std::int64_t rows) {
  MixerStep some = all;
  const auto cut = [&](auto&... views) { ((views = rows_of(views, r, rows)), ...); };
  cut(some.norm.x, some.norm.y, some.project.x, some.project.y, some.conv.x, some.conv.y);
  some.conv.slots = all.conv.slots.subspan(static_cast<std::size_t>(r), static_cast<std::size_t>(rows));
  some.conv.offsets = all.conv.offsets.first(static_cast<std::size_t>(rows) + 1);
  GatesForward& gates = some.gates;
  cut(gates.a, gates.b, gates.l, gates.g, gates.beta, gates.lambda);
  RecurrenceStep& step = some.recurrence;
  cut(step.q, step.k, step.v, step.g, step.beta, step.lambda, step.index, step.o);
  cut(some.out_norm.x, some.out_norm.gate, some.out_norm.y, some.out.x, some.out.y, some.out.add);
  return some;
}

void expect_same_bits(const StepCase::Both& a, const StepCase::Both& b, const char* what) {
  const Tensor left = a.there.get();
  const Tensor right = b.there.get();
  EXPECT_TRUE(std::ranges::equal(left.as<float>(), right.as<float>())) << what;
}

// Sizes of groups that the rows are computed in, one after the other: all of them together make all rows.
const std::vector<std::int64_t> kGroups = {1, 2, 3, 8, 1, 9, 16, 17, 40, 64, 1, 100};

template <class Run>
void in_groups(const Run& run) {
  std::int64_t r = 0;
  for (const std::int64_t rows : kGroups) {
    run(r, rows);
    r += rows;
  }
}

TEST(StepsOnGpu, RowsOfAnMlpAreTheSameAloneAndTogether) {
  QDELTA_NEEDS_DEVICE();
  for (const MlpSizes& sizes : {MlpSizes{262, 200, 264}, {262, 1024, 2816}, {262, 2080, 40}}) {
    const OverlappedLaunches overlapped;
    const MlpStepCase together(sizes, 95);
    ASSERT_TRUE(cuda::mlp_step(device_context(), together.args(there)));
    const MlpStepCase apart(sizes, 95);
    in_groups([&](std::int64_t r, std::int64_t rows) {
      ASSERT_TRUE(cuda::mlp_step(device_context(), rows_of(apart.args(there), r, rows)));
    });
    expect_same_bits(together.out, apart.out, "out");
  }
}

TEST(StepsOnGpu, RowsOfAMixerAreTheSameAloneAndTogether) {
  QDELTA_NEEDS_DEVICE();
  for (const MixerSizes& sizes : {MixerSizes{.rows = 262, .hidden = 200, .heads = 2, .K = 24, .V = 40},
                                  {.rows = 262, .hidden = 1024, .heads = 6, .K = 128, .V = 256},
                                  {.rows = 262, .hidden = 64, .heads = 1, .K = 256, .V = 64, .rule = Rule::mamba2}}) {
    const OverlappedLaunches overlapped;
    const MixerStepCase together(sizes, 96);
    const MixerStepCase apart(sizes, 96);
    for (int token = 0; token < 2; ++token) {
      ASSERT_TRUE(cuda::mixer_step(device_context(), together.args_there()));
      in_groups([&](std::int64_t r, std::int64_t rows) {
        ASSERT_TRUE(cuda::mixer_step(device_context(), rows_of(apart.args_there(), r, rows)));
      });
    }
    expect_same_bits(together.out, apart.out, "out");
    expect_same_bits(together.states, apart.states, "states");
    expect_same_bits(together.conv_state, apart.conv_state, "the convolution's states");
  }
}

// Ops that are left to themselves: float32, and rows of which 16 bytes cannot be read at a time.
TEST(StepsOnGpu, RowsOfAProductAreTheSameAloneAndTogether) {
  QDELTA_NEEDS_DEVICE();
  const RowsAlone alone;
  const Device gpu{.threads = 1, .gpu = &device_context(), .activations = DType::bf16};
  for (const auto& [dtype, inner] :
       {std::pair{DType::f32, 1024}, {DType::f32, 37}, {DType::bf16, 1024}, {DType::bf16, 36}}) {
    StepCase problem(97);
    const auto& x = problem.add(dtype, {262, inner}, -1, 1);
    const auto& w = problem.add(dtype, {600, inner}, -1, 1);
    const auto& together = problem.between(DType::f32, {262, 600});
    const auto& apart = problem.between(DType::f32, {262, 600});
    linear_forward(gpu, {.x = there(x), .w = there(w), .y = there(together), .add = {}});
    in_groups([&](std::int64_t r, std::int64_t rows) {
      linear_forward(gpu,
                     {.x = rows_of(there(x), r, rows), .w = there(w), .y = rows_of(there(apart), r, rows), .add = {}});
    });
    expect_same_bits(together, apart, "y");
  }
}

}  // namespace
}  // namespace qdelta::testing
