// The gradient of every op of layers.h against differences: along a random direction d in all inputs at once,
// (L(x + h d) - L(x - h d)) / 2h = gradient . d for L = sum of (random weights . outputs).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "core/random.h"
#include "kernels/layers.h"
#include "poisoned_workspace.h"
#include "testing.h"

namespace qdelta {
namespace {

using testing::poisoned_workspace;

using Values = std::vector<float>;

Values random_values(Random& random, std::int64_t count, float scale = 1.0F) {
  Values values(static_cast<std::size_t>(count));
  for (float& value : values) value = scale * random.normal();
  return values;
}

TensorView view(Values& values, const Shape& shape) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::f32, shape};
}

// `forward` gives the outputs for given inputs; `backward` the gradients of sum(weights . outputs) in the inputs.
struct Op {
  std::vector<Values> inputs;
  std::function<Values(std::vector<Values>&)> forward;
  std::function<std::vector<Values>(std::vector<Values>&, Values& d_out)> backward;
};

void expect_gradient(Op& op, std::uint64_t seed) {
  Random random(seed);
  const Values weights = random_values(random, static_cast<std::int64_t>(op.forward(op.inputs).size()));
  Values d_out = weights;
  const std::vector<Values> gradients = op.backward(op.inputs, d_out);
  ASSERT_EQ(gradients.size(), op.inputs.size());
  // Each input has a direction of its own, so that no gradient hides behind another.
  for (std::size_t which = 0; which < op.inputs.size(); ++which) {
    const Values direction = random_values(random, static_cast<std::int64_t>(op.inputs[which].size()));
    const double h = 1e-2;
    const auto loss_at = [&](double step) {
      std::vector<Values> moved = op.inputs;
      for (std::size_t i = 0; i < direction.size(); ++i) moved[which][i] += static_cast<float>(step * direction[i]);
      const Values out = op.forward(moved);
      double loss = 0;
      for (std::size_t i = 0; i < out.size(); ++i) loss += static_cast<double>(out[i]) * weights[i];
      return loss;
    };
    // Richardson's extrapolation: the error is of fourth order, so that h can stay large against rounding.
    const double coarse = (loss_at(h) - loss_at(-h)) / (2 * h);
    const double fine = (loss_at(h / 2) - loss_at(-h / 2)) / h;
    const double expected = (4 * fine - coarse) / 3;
    double actual = 0;
    double size = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      actual += static_cast<double>(gradients[which][i]) * direction[i];
      size += static_cast<double>(gradients[which][i]) * gradients[which][i];
    }
    EXPECT_NEAR(actual, expected, 2e-3 * (std::sqrt(size) + 1e-3)) << "input " << which;
  }
}

TEST(LayersGradient, Linear) {
  Random random(1);
  for (const auto& extents : {std::array<std::int64_t, 3>{3, 5, 7}, {40, 33, 300}, {300, 16, 9}}) {
    const std::int64_t N = extents[0];
    const std::int64_t I = extents[1];
    const std::int64_t O = extents[2];
    Op op;
    op.inputs = {random_values(random, N * I), random_values(random, O * I)};
    op.forward = [=](std::vector<Values>& in) {
      Values y(static_cast<std::size_t>(N * O));
      linear_forward({2}, {view(in[0], {N, I}), view(in[1], {O, I}), view(y, {N, O}), {}});
      return y;
    };
    op.backward = [=](std::vector<Values>& in, Values& dy) {
      std::vector<Values> d{Values(in[0].size()), Values(in[1].size())};
      linear_backward({2}, {view(in[0], {N, I}), view(in[1], {O, I}), view(dy, {N, O}), view(d[0], {N, I}),
                            view(d[1], {O, I}), false});
      return d;
    };
    expect_gradient(op, 11);
  }
}

TEST(LayersGradient, RmsNorm) {
  Random random(2);
  const std::int64_t N = 70;
  const std::int64_t D = 37;
  Op op;
  op.inputs = {random_values(random, N * D), random_values(random, D)};
  op.forward = [=](std::vector<Values>& in) {
    Values y(in[0].size());
    rms_norm_forward({2}, {view(in[0], {N, D}), view(in[1], {D}), view(y, {N, D}), {}, 1e-6F});
    return y;
  };
  op.backward = [=](std::vector<Values>& in, Values& dy) {
    Values y(in[0].size());
    Values inverse(static_cast<std::size_t>(N));
    std::vector<Values> d{Values(in[0].size()), Values(in[1].size())};
    rms_norm_forward({2}, {view(in[0], {N, D}), view(in[1], {D}), view(y, {N, D}), view(inverse, {N}), 1e-6F});
    rms_norm_backward({2},
                      {view(in[0], {N, D}),
                       view(in[1], {D}),
                       view(inverse, {N}),
                       view(dy, {N, D}),
                       view(d[0], {N, D}),
                       view(d[1], {D}),
                       {}},
                      poisoned_workspace());
    return d;
  };
  expect_gradient(op, 12);
}

TEST(LayersGradient, GatedNorm) {
  Random random(3);
  const std::int64_t N = 20;
  const std::int64_t heads = 3;
  const std::int64_t V = 18;
  for (const bool gated : {true, false}) {
    Op op;
    op.inputs = {random_values(random, N * heads * V), random_values(random, V)};
    if (gated) op.inputs.push_back(random_values(random, N * heads * V));
    const Shape shape{N, heads * V};
    op.forward = [=](std::vector<Values>& in) {
      Values y(in[0].size());
      gated_norm_forward({2}, {view(in[0], shape), gated ? view(in[2], shape) : TensorView(), view(in[1], {V}),
                               view(y, shape), 1e-6F});
      return y;
    };
    op.backward = [=, op_forward = op.forward](std::vector<Values>& in, Values& dy) {
      std::vector<Values> d;
      for (const Values& input : in) d.emplace_back(input.size());
      gated_norm_backward(
          {2},
          {view(in[0], shape), gated ? view(in[2], shape) : TensorView(), view(in[1], {V}), view(dy, shape),
           view(d[0], shape), gated ? view(d[2], shape) : TensorView(), view(d[1], {V}), 1e-6F, view(dy, shape)},
          poisoned_workspace());
      EXPECT_EQ(dy, op_forward(in));  // which it receives again, in its own place
      return d;
    };
    expect_gradient(op, 13);
  }
}

TEST(LayersGradient, ShortConv) {
  Random random(4);
  const std::int64_t N = 23;
  const std::int64_t channels = 90;                          // a block, a whole vector and a part of one
  const std::vector<std::int64_t> offsets{0, 2, 2, 15, 23};  // a short, an empty and two longer sequences
  for (const std::int64_t W : {1, 2, 4}) {
    for (const bool bias : {false, true}) {
      const Shape shape{N, channels};
      Op op;
      op.inputs = {random_values(random, N * channels), random_values(random, channels * W)};
      if (bias) op.inputs.push_back(random_values(random, channels));
      const auto bias_of = [=](std::vector<Values>& of) { return bias ? view(of[2], {channels}) : TensorView(); };
      op.forward = [=, &offsets](std::vector<Values>& in) {
        Values y(in[0].size());
        short_conv_forward(
            {2}, {view(in[0], shape), view(in[1], {channels, W}), view(y, shape), offsets, {}, {}, bias_of(in)},
            poisoned_workspace());
        return y;
      };
      op.backward = [=, &offsets](std::vector<Values>& in, Values& dy) {
        std::vector<Values> d;
        for (const Values& values : in) d.emplace_back(values.size());
        short_conv_backward({2},
                            {view(in[0], shape), view(in[1], {channels, W}), view(dy, shape), view(d[0], shape),
                             view(d[1], {channels, W}), offsets, bias_of(in), bias_of(d)},
                            poisoned_workspace());
        return d;
      };
      expect_gradient(op, 14);
    }
  }
}

TEST(LayersGradient, Gates) {
  Random random(5);
  const std::int64_t N = 90;
  const std::int64_t HV = 5;
  const Shape shape{N, HV};
  for (const bool step_is_beta : {false, true}) {
    // a, A_log, dt_bias, then b and l with its bias.
    Op op;
    op.inputs = {random_values(random, N * HV), random_values(random, HV),     random_values(random, HV),
                 random_values(random, N * HV), random_values(random, N * HV), random_values(random, 1)};
    if (step_is_beta) op.inputs.resize(3);
    const auto arguments = [=](std::vector<Values>& in, Values& out) {
      GatesForward args;
      args.a = view(in[0], shape);
      args.A_log = view(in[1], {HV});
      args.dt_bias = view(in[2], {HV});
      if (!step_is_beta) {
        args.b = view(in[3], shape);
        args.l = view(in[4], shape);
        args.lambda_bias = view(in[5], {1});
      }
      out.resize(static_cast<std::size_t>(3 * N * HV));
      const auto part = [&](std::int64_t i) {
        return TensorView(reinterpret_cast<std::byte*>(out.data() + i * N * HV), DType::f32, shape);
      };
      args.g = part(0);
      args.beta = part(1);
      args.lambda = part(2);
      args.step_is_beta = step_is_beta;
      args.factor = 2.0F;
      return args;
    };
    op.forward = [=](std::vector<Values>& in) {
      Values out;
      gates_forward({2}, arguments(in, out));
      return out;
    };
    op.backward = [=](std::vector<Values>& in, Values& d_out) {
      Values out;
      GatesBackward args;
      args.forward = arguments(in, out);
      gates_forward({2}, args.forward);
      const auto part = [&](std::int64_t i) {
        return TensorView(reinterpret_cast<std::byte*>(d_out.data() + i * N * HV), DType::f32, shape);
      };
      args.dg = part(0);
      args.dbeta = part(1);
      args.dlambda = part(2);
      std::vector<Values> d;
      for (const Values& input : in) d.emplace_back(input.size());
      args.da = view(d[0], shape);
      args.dA_log = view(d[1], {HV});
      args.ddt_bias = view(d[2], {HV});
      if (!step_is_beta) {
        args.db = view(d[3], shape);
        args.dl = view(d[4], shape);
        args.dlambda_bias = view(d[5], {1});
      }
      gates_backward({2}, args, poisoned_workspace());
      return d;
    };
    expect_gradient(op, 15);
  }
}

TEST(LayersGradient, Swiglu) {
  Random random(6);
  const Shape shape{30, 41};
  Op op;
  op.inputs = {random_values(random, shape.elements()), random_values(random, shape.elements())};
  op.forward = [=](std::vector<Values>& in) {
    Values y(in[0].size());
    swiglu_forward({2}, {view(in[0], shape), view(in[1], shape), view(y, shape)});
    return y;
  };
  op.backward = [=, op_forward = op.forward](std::vector<Values>& in, Values& dy) {
    std::vector<Values> d{Values(in[0].size()), Values(in[1].size())};
    swiglu_backward({2}, {view(in[0], shape), view(in[1], shape), view(dy, shape), view(d[0], shape), view(d[1], shape),
                          view(dy, shape)});
    EXPECT_EQ(dy, op_forward(in));  // which it receives again, in its own place
    return d;
  };
  expect_gradient(op, 16);
}

TEST(LayersGradient, Embedding) {
  Random random(7);
  const std::vector<std::int32_t> ids{3, 0, 3, 7, 3, 1};
  const auto N = static_cast<std::int64_t>(ids.size());
  Op op;
  op.inputs = {random_values(random, 8 * 70)};
  op.forward = [=, &ids](std::vector<Values>& in) {
    Values y(static_cast<std::size_t>(N * 70));
    embedding_forward({2}, {ids, view(in[0], {8, 70}), view(y, {N, 70})});
    return y;
  };
  op.backward = [=, &ids](std::vector<Values>& in, Values& dy) {
    std::vector<Values> d{Values(in[0].size())};
    embedding_backward({2}, {ids, view(dy, {N, 70}), view(d[0], {8, 70})}, poisoned_workspace());
    return d;
  };
  expect_gradient(op, 17);
}

TEST(LayersGradient, CrossEntropy) {
  Random random(8);
  const std::int64_t N = 9;
  const std::int64_t vocabulary = 53;
  const std::vector<std::int32_t> targets{0, 52, 7, -1, 7, 31, 16, 15, 2};
  Op op;
  op.inputs = {random_values(random, N * vocabulary, 3.0F)};
  const auto run = [=, &targets](Values logits, Values& loss, bool gradient) {
    loss.resize(static_cast<std::size_t>(N));
    cross_entropy({2}, {view(logits, {N, vocabulary}), targets, loss, {}, gradient, 1.0F});
    return logits;
  };
  op.forward = [=](std::vector<Values>& in) {
    Values loss;
    run(in[0], loss, false);
    return loss;
  };
  op.backward = [=](std::vector<Values>& in, Values& d_loss) {
    Values loss;
    Values d = run(in[0], loss, true);
    for (std::int64_t i = 0; i < N * vocabulary; ++i)
      d[static_cast<std::size_t>(i)] *= d_loss[static_cast<std::size_t>(i / vocabulary)];
    return std::vector<Values>{d};
  };
  expect_gradient(op, 18);
}

TEST(Layers, CrossEntropyIgnoresNegativeTargetsAndSurvivesHugeLogits) {
  Values logits{1e4F, -1e4F, 0.0F, 1.0F, 2.0F, 3.0F};
  Values loss(2);
  std::vector<std::int32_t> best(2);
  const std::vector<std::int32_t> targets{1, -1};
  cross_entropy({1}, {view(logits, {2, 3}), targets, loss, best, true, 1.0F});
  EXPECT_FLOAT_EQ(loss[0], 2e4F);
  EXPECT_EQ(loss[1], 0.0F);
  EXPECT_EQ(best[0], 0);
  EXPECT_EQ(best[1], 2);
  EXPECT_FLOAT_EQ(logits[0], 1.0F);
  EXPECT_FLOAT_EQ(logits[1], -1.0F);
  EXPECT_EQ(logits[4], 0.0F);
}

TEST(Layers, LinearIsTheSameForAnyNumberOfThreads) {
  Random random(9);
  const std::int64_t N = 600;
  const std::int64_t I = 130;
  const std::int64_t O = 700;
  Values x = random_values(random, N * I);
  Values w = random_values(random, O * I);
  Values dy = random_values(random, N * O);
  const auto run = [&](int threads) {
    Values y(static_cast<std::size_t>(N * O));
    Values dx(x.size());
    Values dw(w.size());
    linear_forward({threads}, {view(x, {N, I}), view(w, {O, I}), view(y, {N, O}), {}});
    linear_backward({threads},
                    {view(x, {N, I}), view(w, {O, I}), view(dy, {N, O}), view(dx, {N, I}), view(dw, {O, I}), false});
    y.insert(y.end(), dx.begin(), dx.end());
    y.insert(y.end(), dw.begin(), dw.end());
    return y;
  };
  const Values one = run(1);
  for (const int threads : {2, 3, 5}) EXPECT_EQ(run(threads), one) << threads << " threads";
}

TEST(Layers, AFewRowsAreTheSameAloneAndTogether) {
  Random random(10);
  const std::int64_t I = 77;
  const std::int64_t O = 131;
  Values x = random_values(random, 9 * I);
  Values w = random_values(random, O * I);
  Values together(static_cast<std::size_t>(9 * O));
  linear_forward({2}, {view(x, {9, I}), view(w, {O, I}), view(together, {9, O}), {}});
  for (std::int64_t r = 0; r < 9; ++r) {
    Values row(x.begin() + r * I, x.begin() + (r + 1) * I);
    Values alone(static_cast<std::size_t>(O));
    linear_forward({1}, {view(row, {1, I}), view(w, {O, I}), view(alone, {1, O}), {}});
    EXPECT_EQ(alone, Values(together.begin() + r * O, together.begin() + (r + 1) * O)) << "row " << r;
  }
}

TEST(Layers, AdamWFollowsTheFormula) {
  Values p{1.0F, -2.0F, 0.5F};
  Values m(3);
  Values v(3);
  const Values g{0.1F, -0.4F, 0.0F};
  double ep[] = {1.0, -2.0, 0.5};
  double em[3] = {};
  double ev[3] = {};
  for (std::int64_t t = 1; t <= 5; ++t) {
    AdamW args;
    args.parameters = p;
    args.m = m;
    args.v = v;
    args.gradients = g;
    args.learning_rate = 0.01F;
    args.epsilon = 1e-8F;
    args.gradient_scale = 0.5F;
    args.step = t;
    adamw({1}, args);
    for (std::size_t i = 0; i < 3; ++i) {
      const double gradient = 0.5 * double{g[i]};
      em[i] = 0.9 * em[i] + 0.1 * gradient;
      ev[i] = 0.95 * ev[i] + 0.05 * gradient * gradient;
      const double step = em[i] / (1 - std::pow(0.9, t)) / (std::sqrt(ev[i] / (1 - std::pow(0.95, t))) + 1e-8);
      ep[i] -= 0.01 * (step + 0.1 * ep[i]);
      EXPECT_NEAR(double{p[i]}, ep[i], 1e-6) << "step " << t;
    }
  }
}

// Rows of x that overlap are no matrix for oneDNN.
TEST(Linear, AProductThatTheLibraryRefusesIsAnError) {
  const std::int64_t N = 32;  // more than few
  Values x(static_cast<std::size_t>(N) * 8);
  Values w(5 * 8);
  Values y(static_cast<std::size_t>(N) * 5);
  TensorView overlapping = view(x, {N, 8});
  overlapping.stride[0] = 4;
  testing::expect_error(Status::invalid_argument, {"oneDNN", "[32, 8] by [8, 5]", "invalid"}, [&] {
    linear_forward({1}, {.x = overlapping, .w = view(w, {5, 8}), .y = view(y, {N, 5}), .add = {}});
    return 0;
  });
}

}  // namespace
}  // namespace qdelta
