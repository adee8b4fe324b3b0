// y[t] = silu(u[t]),  u[t][c] = bias[c] + sum_j weight[c][j] x[t - W + 1 + j][c]
//   backward:  du = dy silu'(u),   dx[t][c] = sum_j weight[c][j] du[t + W - 1 - j][c],   dweight[c][j] += sum_t du[t]
//   x[...],   dbias += sum_t du[t]
// Channels are independent, so a thread takes a block of them through all sequences; u is computed again in the
// backward.
#include "kernels/cpu/short_conv.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/threads.h"
#include "kernels/cpu/layers.h"
#include "kernels/cpu/view_check.h"

#define HWY_TARGET_INCLUDE "kernels/cpu/short_conv.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// Rows are too far apart for the processor to guess the next: it is told, so many tokens ahead.
inline constexpr std::int64_t kAhead = 12;

// Input row `t` of a sequence, where t may be before its first token.
HWY_INLINE Vector LoadRow(const ConvInput& in, std::int64_t t, std::int64_t c, std::int64_t n) {
  if (t >= 0) return LoadN(in.x + t * in.ld + c, n);
  if (in.before == nullptr) return hn::Zero(Floats());
  return LoadN(in.before + (t + in.W - 1) * in.channels + c, n);
}

// Row `t` of its gradient; null where nobody wants it.
HWY_INLINE float* GradientRow(const ConvInput& in, const ConvGradients& out, std::int64_t t) {
  if (t >= 0) return out.dx + t * out.dx_ld;
  return out.dbefore == nullptr ? nullptr : out.dbefore + (t + in.W - 1) * in.channels;
}

HWY_INLINE Vector Weight(const ConvInput& in, std::int64_t j, std::int64_t c, std::int64_t n) {
  return LoadN(in.weight_t + j * in.channels + c, n);
}

// The gradient of silu, s = sigmoid(u).
HWY_INLINE Vector SiluSlope(Vector u, Vector s) {
  const Vector one = hn::Set(Floats(), 1.0F);
  return hn::Mul(s, hn::MulAdd(u, hn::Sub(one, s), one));
}

// Calls columns(c, n, count of vectors) for the channels [begin, end): as many groups of kVectors whole vectors as
// there are, then vectors one at a time. A group keeps its window in registers and reads whole stretches of a row,
// which lie far apart.
template <int kVectors, class Columns>
HWY_INLINE void ForColumns(std::int64_t begin, std::int64_t end, const Columns& columns) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  std::int64_t c = begin;
  for (; c + kVectors * lanes <= end; c += kVectors * lanes) {
    columns(c, lanes, std::integral_constant<int, kVectors>());
  }
  for (; c + lanes <= end; c += lanes) columns(c, lanes, std::integral_constant<int, 1>());
  if (c < end) columns(c, end - c, std::integral_constant<int, 1>());
}

// With a window of any width.
void ForwardAnyWidth(const ConvInput& in, float* y, std::int64_t y_ld, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = 0; t < in.length; ++t) {
    ForVectors(end - begin, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
      const std::int64_t c = begin + i;
      Vector u = Weight(in, in.W, c, n);
      for (std::int64_t j = 0; j < in.W; ++j)
        u = hn::MulAdd(Weight(in, j, c, n), LoadRow(in, t - in.W + 1 + j, c, n), u);
      StoreN(hn::Mul(u, Sigmoid(u)), y + t * y_ld + c, n);
    });
  }
}

// With the usual window of four.
void ForwardFour(const ConvInput& in, float* y, std::int64_t y_ld, std::int64_t begin, std::int64_t end) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  ForColumns<4>(begin, end, [&](std::int64_t first, std::int64_t n, auto vectors) HWY_ATTR {
    constexpr int kVectors = decltype(vectors)::value;
    Vector x0[kVectors];
    Vector x1[kVectors];
    Vector x2[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      x0[i] = LoadRow(in, -3, first + i * lanes, n);
      x1[i] = LoadRow(in, -2, first + i * lanes, n);
      x2[i] = LoadRow(in, -1, first + i * lanes, n);
    }
    for (std::int64_t t = 0; t < in.length; ++t) {
      const std::int64_t ahead = std::min(t + kAhead, in.length - 1);
      for (int i = 0; i < kVectors; ++i) {
        const std::int64_t c = first + i * lanes;
        hwy::Prefetch(in.x + ahead * in.ld + c);
        const Vector x3 = LoadN(in.x + t * in.ld + c, n);
        Vector u = hn::MulAdd(Weight(in, 0, c, n), x0[i], Weight(in, 4, c, n));
        u = hn::MulAdd(Weight(in, 1, c, n), x1[i], u);
        u = hn::MulAdd(Weight(in, 2, c, n), x2[i], u);
        u = hn::MulAdd(Weight(in, 3, c, n), x3, u);
        StoreN(hn::Mul(u, Sigmoid(u)), y + t * y_ld + c, n);
        x0[i] = x1[i];
        x1[i] = x2[i];
        x2[i] = x3;
      }
    }
  });
}

// `state`, where there is one, is what came before, and becomes what comes before the next call.
void ConvForward(const ConvInput& in, float* state, float* y, std::int64_t y_ld, std::int64_t begin, std::int64_t end) {
  (in.W == kUsualWidth ? ForwardFour : ForwardAnyWidth)(in, y, y_ld, begin, end);
  if (state == nullptr) return;
  // The last W - 1 inputs, oldest first; those before this call come from the old state, which lies further on.
  for (std::int64_t j = 0; j < in.W - 1; ++j) {
    ForVectors(end - begin, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
      StoreN(LoadRow(in, in.length - in.W + 1 + j, begin + i, n), state + j * in.channels + begin + i, n);
    });
  }
}

void BackwardAnyWidth(const ConvInput& in, const ConvGradients& out, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = end - begin;
  for (std::int64_t t = 0; t < in.length; ++t) {
    ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
      const std::int64_t c = begin + i;
      Vector u = Weight(in, in.W, c, n);
      for (std::int64_t j = 0; j < in.W; ++j)
        u = hn::MulAdd(Weight(in, j, c, n), LoadRow(in, t - in.W + 1 + j, c, n), u);
      const Vector du = hn::Mul(LoadN(out.dy + t * out.dy_ld + c, n), SiluSlope(u, Sigmoid(u)));
      StoreN(du, out.du + t * width + i, n);
      for (std::int64_t j = 0; j < in.W; ++j) {
        float* sum = out.dweight_t + j * in.channels + c;
        StoreN(hn::MulAdd(du, LoadRow(in, t - in.W + 1 + j, c, n), LoadN(sum, n)), sum, n);
      }
      float* bias_sum = out.dweight_t + in.W * in.channels + c;
      StoreN(hn::Add(du, LoadN(bias_sum, n)), bias_sum, n);
    });
  }
  for (std::int64_t t = 1 - in.W; t < in.length; ++t) {
    float* row = GradientRow(in, out, t);
    if (row == nullptr) continue;
    ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
      Vector sum = hn::Zero(Floats());
      for (std::int64_t j = 0; j < in.W; ++j) {
        const std::int64_t from = t + in.W - 1 - j;
        if (from >= 0 && from < in.length)
          sum = hn::MulAdd(Weight(in, j, begin + i, n), LoadN(out.du + from * width + i, n), sum);
      }
      StoreN(sum, row + begin + i, n);
    });
  }
}

// dx lags three tokens behind, until the du that it needs are there.
void BackwardFour(const ConvInput& in, const ConvGradients& out, std::int64_t begin, std::int64_t end) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  ForColumns<2>(begin, end, [&](std::int64_t first, std::int64_t n, auto vectors) HWY_ATTR {
    constexpr int kVectors = decltype(vectors)::value;
    const Vector zero = hn::Zero(Floats());
    Vector x0[kVectors], x1[kVectors], x2[kVectors];     // x[t - 3 ... t - 1]
    Vector du0[kVectors], du1[kVectors], du2[kVectors];  // likewise
    Vector sum0[kVectors], sum1[kVectors], sum2[kVectors], sum3[kVectors],
        sum4[kVectors];  // of the weights and the bias
    for (int i = 0; i < kVectors; ++i) {
      x0[i] = LoadRow(in, -3, first + i * lanes, n);
      x1[i] = LoadRow(in, -2, first + i * lanes, n);
      x2[i] = LoadRow(in, -1, first + i * lanes, n);
      du0[i] = du1[i] = du2[i] = zero;
      sum0[i] = sum1[i] = sum2[i] = sum3[i] = sum4[i] = zero;
    }
    const auto write_dx = [&](std::int64_t t, int i, Vector du3) HWY_ATTR {
      float* row = GradientRow(in, out, t);
      if (row == nullptr) return;
      const std::int64_t c = first + i * lanes;
      Vector dx = hn::Mul(Weight(in, 0, c, n), du3);
      dx = hn::MulAdd(Weight(in, 1, c, n), du2[i], dx);
      dx = hn::MulAdd(Weight(in, 2, c, n), du1[i], dx);
      dx = hn::MulAdd(Weight(in, 3, c, n), du0[i], dx);
      StoreN(dx, row + c, n);
    };
    for (std::int64_t t = 0; t < in.length; ++t) {
      const std::int64_t ahead = std::min(t + kAhead, in.length - 1);
      for (int i = 0; i < kVectors; ++i) {
        const std::int64_t c = first + i * lanes;
        hwy::Prefetch(in.x + ahead * in.ld + c);
        hwy::Prefetch(out.dy + ahead * out.dy_ld + c);
        const Vector x3 = LoadN(in.x + t * in.ld + c, n);
        Vector u = hn::MulAdd(Weight(in, 0, c, n), x0[i], Weight(in, 4, c, n));
        u = hn::MulAdd(Weight(in, 1, c, n), x1[i], u);
        u = hn::MulAdd(Weight(in, 2, c, n), x2[i], u);
        u = hn::MulAdd(Weight(in, 3, c, n), x3, u);
        const Vector du3 = hn::Mul(LoadN(out.dy + t * out.dy_ld + c, n), SiluSlope(u, Sigmoid(u)));
        sum0[i] = hn::MulAdd(du3, x0[i], sum0[i]);
        sum1[i] = hn::MulAdd(du3, x1[i], sum1[i]);
        sum2[i] = hn::MulAdd(du3, x2[i], sum2[i]);
        sum3[i] = hn::MulAdd(du3, x3, sum3[i]);
        sum4[i] = hn::Add(du3, sum4[i]);
        write_dx(t - 3, i, du3);
        x0[i] = x1[i];
        x1[i] = x2[i];
        x2[i] = x3;
        du0[i] = du1[i];
        du1[i] = du2[i];
        du2[i] = du3;
      }
    }
    for (int i = 0; i < kVectors; ++i) {
      for (std::int64_t t = in.length - 3; t < in.length; ++t) {
        write_dx(t, i, zero);
        du0[i] = du1[i];
        du1[i] = du2[i];
        du2[i] = zero;
      }
      const auto add = [&](std::int64_t j, Vector sum) HWY_ATTR {
        float* to = out.dweight_t + j * in.channels + first + i * lanes;
        StoreN(hn::Add(LoadN(to, n), sum), to, n);
      };
      add(0, sum0[i]);
      add(1, sum1[i]);
      add(2, sum2[i]);
      add(3, sum3[i]);
      add(4, sum4[i]);
    }
  });
}

void ConvBackward(const ConvInput& in, const ConvGradients& out, std::int64_t begin, std::int64_t end) {
  (in.W == kUsualWidth ? BackwardFour : BackwardAnyWidth)(in, out, begin, end);
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(ConvForward);
HWY_EXPORT(ConvBackward);

namespace {

constexpr std::int64_t kChannelBlock = 64;

// [channels][W] as [W][channels], so that channels fill vectors; then the bias, or zeros.
void transpose_weight(const ConstTensorView& weight, const ConstTensorView& bias, float* out) {
  const std::int64_t channels = weight.extent(0);
  const std::int64_t W = weight.extent(1);
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t j = 0; j < W; ++j) out[j * channels + c] = floats(weight)[c * W + j];
    out[W * channels + c] = bias ? floats(bias)[c] : 0.0F;
  }
}

// Floats of the weight and the bias.
std::int64_t weight_size(const ConstTensorView& weight) { return weight.extent(0) * (weight.extent(1) + 1); }

// Scratch memory of the backward.
struct ConvBackwardMemory {
  std::int64_t du_size = 0;  // of one thread; none for the usual window
  float *weight_t, *dweight_t, *du;
  std::size_t bytes;

  ConvBackwardMemory(const Device& device, const ShortConvBackward& args, BumpAllocator memory) {
    for (std::size_t n = 1; n < args.offsets.size() && args.weight.extent(1) != kUsualWidth; ++n)
      du_size = std::max(du_size, (args.offsets[n] - args.offsets[n - 1]) * kChannelBlock);
    weight_t = memory.take<float>(weight_size(args.weight));
    dweight_t = memory.take<float>(weight_size(args.weight));
    du = memory.take<float>(thread_count(device.threads) * du_size);
    bytes = memory.used();
  }
};

void check_conv(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias,
                std::span<const std::int64_t> offsets) {
  check_matrix(x, "x");
  check_matrix(weight, "weight");
  require(weight.contiguous() && weight.extent(0) == x.extent(1), "short_conv: weight {} does not fit x {}",
          weight.shape.text(), x.shape.text());
  if (bias) check_vector(bias, weight.extent(0), "bias");
  require(!offsets.empty() && offsets.back() <= x.extent(0), "short_conv: offsets do not fit x {}", x.shape.text());
}

// Rows before the first sequence, or their gradient.
void check_before(const ConstTensorView& before, const ConstTensorView& weight, const char* name) {
  require(before.dtype == DType::f32 && before.contiguous() &&
              before.shape == Shape({weight.extent(1) - 1, weight.extent(0)}),
          "short_conv: {} {} does not fit weight {}", name, before.shape.text(), weight.shape.text());
}

}  // namespace

std::size_t short_conv_forward_workspace(const ShortConvForward& args) {
  return static_cast<std::size_t>(weight_size(args.weight)) * sizeof(float);
}

void short_conv_forward(const Device& device, const ShortConvForward& args, std::span<std::byte> workspace) {
  check_conv(args.x, args.weight, args.bias, args.offsets);
  check_matrix(args.y, "y");
  require(!args.before || !args.state, "short_conv: both a state and rows before the first sequence are given");
  if (args.before) check_before(args.before, args.weight, "before");
  const std::int64_t channels = args.weight.extent(0);
  const std::int64_t W = args.weight.extent(1);
  const auto sequences = static_cast<std::int64_t>(args.offsets.size()) - 1;
  auto* weight_t = reinterpret_cast<float*>(workspace.data());
  transpose_weight(args.weight, args.bias, weight_t);
  const std::int64_t blocks = ceil_div(channels, kChannelBlock);
  const auto run = HWY_DYNAMIC_DISPATCH(ConvForward);
  parallel_for(sequences * blocks, thread_count(device.threads), [&](std::int64_t index, int /*worker*/) {
    const std::int64_t n = index / blocks;
    const std::int64_t begin = index % blocks * kChannelBlock;
    const std::int64_t first = args.offsets[n];
    const std::int64_t slot = args.slots.empty() ? n : args.slots[n];
    float* state = args.state ? floats(args.state) + slot * (W - 1) * channels : nullptr;
    const float* before = args.before && n == 0 ? floats(args.before) : state;
    run({.x = floats(args.x) + first * args.x.step(0),
         .ld = args.x.step(0),
         .length = args.offsets[n + 1] - first,
         .weight_t = weight_t,
         .channels = channels,
         .W = W,
         .before = before},
        state, floats(args.y) + first * args.y.step(0), args.y.step(0), begin,
        std::min(channels, begin + kChannelBlock));
  });
}

std::size_t short_conv_backward_workspace(const Device& device, const ShortConvBackward& args) {
  return ConvBackwardMemory(device, args, BumpAllocator(nullptr)).bytes;
}

void short_conv_backward(const Device& device, const ShortConvBackward& args, std::span<std::byte> workspace) {
  check_conv(args.x, args.weight, args.bias, args.offsets);
  check_matrix(args.dy, "dy");
  check_matrix(args.dx, "dx");
  if (args.bias) check_vector(args.dbias, args.weight.extent(0), "dbias");
  if (args.before) {
    check_before(args.before, args.weight, "before");
    check_before(args.dbefore, args.weight, "dbefore");
  }
  const std::int64_t channels = args.weight.extent(0);
  const std::int64_t W = args.weight.extent(1);
  const auto sequences = static_cast<std::int64_t>(args.offsets.size()) - 1;
  const ConvBackwardMemory memory(device, args, BumpAllocator(workspace.data()));
  transpose_weight(args.weight, args.bias, memory.weight_t);
  std::fill_n(memory.dweight_t, weight_size(args.weight), 0.0F);
  const auto run = HWY_DYNAMIC_DISPATCH(ConvBackward);
  parallel_for(ceil_div(channels, kChannelBlock), thread_count(device.threads), [&](std::int64_t block, int worker) {
    const std::int64_t begin = block * kChannelBlock;
    for (std::int64_t n = 0; n < sequences; ++n) {
      const std::int64_t first = args.offsets[n];
      run({.x = floats(args.x) + first * args.x.step(0),
           .ld = args.x.step(0),
           .length = args.offsets[n + 1] - first,
           .weight_t = memory.weight_t,
           .channels = channels,
           .W = W,
           .before = args.before && n == 0 ? floats(args.before) : nullptr},
          {.dy = floats(args.dy) + first * args.dy.step(0),
           .dy_ld = args.dy.step(0),
           .dx = floats(args.dx) + first * args.dx.step(0),
           .dx_ld = args.dx.step(0),
           .dbefore = args.before && n == 0 ? floats(args.dbefore) : nullptr,
           .dweight_t = memory.dweight_t,
           .du = memory.du + worker * memory.du_size},
          begin, std::min(channels, begin + kChannelBlock));
    }
  });
  float* dweight = floats(args.dweight);
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t j = 0; j < W; ++j) dweight[c * W + j] += memory.dweight_t[j * channels + c];
    if (args.bias) floats(args.dbias)[c] += memory.dweight_t[W * channels + c];
  }
}

}  // namespace qdelta::cpu
#endif
