// y[t] = silu(u[t]),  u[t][c] = bias[c] + sum_j weight[c][j] x[t - W + 1 + j][c]
//   backward:  du = dy silu'(u),   dx[t][c] = sum_j weight[c][j] du[t + W - 1 - j][c],   dweight[c][j] += sum_t du[t]
//   x[...],   dbias += sum_t du[t]
// Channels are independent, so a thread takes a block of them through all sequences; u is computed again in the
// backward.
#include <algorithm>
#include <vector>

#include "core/threads.h"
#include "kernels/cpu/layers.h"
#include "kernels/cpu/view_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/short_conv.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// Input row `t` of a sequence, where t may be before its first token.
struct History {
  const float* x;  // first row of the sequence
  std::int64_t ld;
  const float* state;  // [W - 1][channels] rows before the first, oldest first; null: zeros
  std::int64_t state_ld, W;

  HWY_INLINE Vector Load(std::int64_t t, std::int64_t c, std::int64_t n) const {
    if (t >= 0) return LoadN(x + t * ld + c, n);
    if (state == nullptr) return hn::Zero(Floats());
    return LoadN(state + (t + W - 1) * state_ld + c, n);
  }
};

// weight_t is [W + 1][channels], the bias last.
HWY_INLINE Vector Convolve(const History& in, const float* weight_t, std::int64_t channels, std::int64_t t,
                           std::int64_t c, std::int64_t n) {
  Vector u = LoadN(weight_t + in.W * channels + c, n);
  for (std::int64_t j = 0; j < in.W; ++j) {
    u = hn::MulAdd(LoadN(weight_t + j * channels + c, n), in.Load(t - in.W + 1 + j, c, n), u);
  }
  return u;
}

void ConvForward(const float* x, std::int64_t x_ld, const float* weight_t, float* y, std::int64_t y_ld, float* state,
                 std::int64_t length, std::int64_t channels, std::int64_t W, std::int64_t begin, std::int64_t end) {
  const History in{x, x_ld, state, channels, W};
  for (std::int64_t t = 0; t < length; ++t) {
    ForVectors(end - begin, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
      const Vector u = Convolve(in, weight_t, channels, t, begin + i, n);
      StoreN(hn::Mul(u, Sigmoid(u)), y + t * y_ld + begin + i, n);
    });
  }
  if (state == nullptr) return;
  // The last W - 1 inputs, oldest first; those before this call come from the old state, which lies further on.
  for (std::int64_t j = 0; j < W - 1; ++j) {
    ForVectors(end - begin, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
      StoreN(in.Load(length - W + 1 + j, begin + i, n), state + j * channels + begin + i, n);
    });
  }
}

// du is scratch of [length][end - begin].
void ConvBackward(const float* x, std::int64_t x_ld, const float* weight_t, const float* dy, std::int64_t dy_ld,
                  float* dx, std::int64_t dx_ld, float* dweight_t, float* du, std::int64_t length,
                  std::int64_t channels, std::int64_t W, std::int64_t begin, std::int64_t end) {
  const Floats d;
  const Vector one = hn::Set(d, 1.0F);
  const History in{x, x_ld, nullptr, channels, W};
  const std::int64_t width = end - begin;
  for (std::int64_t t = 0; t < length; ++t) {
    ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
      const Vector u = Convolve(in, weight_t, channels, t, begin + i, n);
      const Vector s = Sigmoid(u);
      const Vector slope = hn::Mul(s, hn::MulAdd(u, hn::Sub(one, s), one));
      const Vector v = hn::Mul(LoadN(dy + t * dy_ld + begin + i, n), slope);
      StoreN(v, du + t * width + i, n);
      for (std::int64_t j = 0; j < W; ++j) {
        float* sum = dweight_t + j * channels + begin + i;
        StoreN(hn::MulAdd(v, in.Load(t - W + 1 + j, begin + i, n), LoadN(sum, n)), sum, n);
      }
      float* bias_sum = dweight_t + W * channels + begin + i;
      StoreN(hn::Add(v, LoadN(bias_sum, n)), bias_sum, n);
    });
  }
  for (std::int64_t t = 0; t < length; ++t) {
    ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
      Vector sum = hn::Zero(d);
      for (std::int64_t j = 0; j < W; ++j) {
        const std::int64_t from = t + W - 1 - j;
        if (from < length) {
          sum = hn::MulAdd(LoadN(weight_t + j * channels + begin + i, n), LoadN(du + from * width + i, n), sum);
        }
      }
      StoreN(sum, dx + t * dx_ld + begin + i, n);
    });
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta {
namespace cpu {
namespace {
HWY_EXPORT(ConvForward);
auto conv_forward() { return HWY_DYNAMIC_DISPATCH(ConvForward); }
HWY_EXPORT(ConvBackward);
auto conv_backward() { return HWY_DYNAMIC_DISPATCH(ConvBackward); }
}  // namespace
}  // namespace cpu

using cpu::floats;

namespace {

constexpr std::int64_t kChannelBlock = 64;

// [channels][W] as [W][channels], so that channels fill vectors; then the bias, or zeros.
std::vector<float>& transposed(const ConstTensorView& weight, const ConstTensorView& bias) {
  const std::int64_t channels = weight.extent(0);
  const std::int64_t W = weight.extent(1);
  thread_local std::vector<float> out;
  out.resize(static_cast<std::size_t>(channels * (W + 1)));
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t j = 0; j < W; ++j) out[static_cast<std::size_t>(j * channels + c)] = floats(weight)[c * W + j];
    out[static_cast<std::size_t>(W * channels + c)] = bias ? floats(bias)[c] : 0.0F;
  }
  return out;
}

void check_conv(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias,
                std::span<const std::int64_t> offsets) {
  cpu::check_matrix(x, "x");
  cpu::check_matrix(weight, "weight");
  require(weight.contiguous() && weight.extent(0) == x.extent(1), "short_conv: weight {} does not fit x {}",
          weight.shape.text(), x.shape.text());
  if (bias) cpu::check_vector(bias, weight.extent(0), "bias");
  require(!offsets.empty() && offsets.back() <= x.extent(0), "short_conv: offsets do not fit x {}", x.shape.text());
}

}  // namespace

void cpu::short_conv_forward(const Device& device, const ShortConvForward& args) {
  check_conv(args.x, args.weight, args.bias, args.offsets);
  cpu::check_matrix(args.y, "y");
  const std::int64_t channels = args.weight.extent(0);
  const std::int64_t W = args.weight.extent(1);
  const auto sequences = static_cast<std::int64_t>(args.offsets.size()) - 1;
  const float* weight_t = transposed(args.weight, args.bias).data();
  const std::int64_t blocks = ceil_div(channels, kChannelBlock);
  const auto run = cpu::conv_forward();
  parallel_for(sequences * blocks, thread_count(device.threads), [&](std::int64_t index, int /*worker*/) {
    const std::int64_t n = index / blocks;
    const std::int64_t begin = index % blocks * kChannelBlock;
    const std::int64_t first = args.offsets[n];
    const std::int64_t slot = args.slots.empty() ? n : args.slots[n];
    run(floats(args.x) + first * args.x.step(0), args.x.step(0), weight_t, floats(args.y) + first * args.y.step(0),
        args.y.step(0), args.state ? floats(args.state) + slot * (W - 1) * channels : nullptr,
        args.offsets[n + 1] - first, channels, W, begin, std::min(channels, begin + kChannelBlock));
  });
}

void cpu::short_conv_backward(const Device& device, const ShortConvBackward& args) {
  check_conv(args.x, args.weight, args.bias, args.offsets);
  cpu::check_matrix(args.dy, "dy");
  cpu::check_matrix(args.dx, "dx");
  if (args.bias) cpu::check_vector(args.dbias, args.weight.extent(0), "dbias");
  const std::int64_t channels = args.weight.extent(0);
  const std::int64_t W = args.weight.extent(1);
  const auto sequences = static_cast<std::int64_t>(args.offsets.size()) - 1;
  const float* weight_t = transposed(args.weight, args.bias).data();
  std::int64_t longest = 0;
  for (std::int64_t n = 0; n < sequences; ++n) longest = std::max(longest, args.offsets[n + 1] - args.offsets[n]);
  const int threads = thread_count(device.threads);
  const std::int64_t du_size = longest * kChannelBlock;
  thread_local std::vector<float> memory;
  memory.assign(static_cast<std::size_t>(channels * (W + 1) + threads * du_size), 0.0F);
  float* dweight_t = memory.data();
  float* du = dweight_t + channels * (W + 1);
  const auto run = cpu::conv_backward();
  parallel_for(ceil_div(channels, kChannelBlock), threads, [&](std::int64_t block, int worker) {
    const std::int64_t begin = block * kChannelBlock;
    for (std::int64_t n = 0; n < sequences; ++n) {
      const std::int64_t first = args.offsets[n];
      run(floats(args.x) + first * args.x.step(0), args.x.step(0), weight_t, floats(args.dy) + first * args.dy.step(0),
          args.dy.step(0), floats(args.dx) + first * args.dx.step(0), args.dx.step(0), dweight_t, du + worker * du_size,
          args.offsets[n + 1] - first, channels, W, begin, std::min(channels, begin + kChannelBlock));
    }
  });
  float* dweight = floats(args.dweight);
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t j = 0; j < W; ++j) dweight[c * W + j] += dweight_t[j * channels + c];
    if (args.bias) floats(args.dbias)[c] += dweight_t[W * channels + c];
  }
}

}  // namespace qdelta
#endif
