// m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   g scaled by the clipping factor
// p <- p - lr ( m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay p )
#include <cmath>

#include "kernels/cpu/layers.h"
#include "kernels/cpu/row_sums.h"

#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

void AdamWRange(const AdamW& args, std::int64_t begin, std::int64_t end) {
  const Floats d;
  const Vector beta1 = hn::Set(d, args.beta1);
  const Vector beta2 = hn::Set(d, args.beta2);
  const Vector rest1 = hn::Set(d, 1.0F - args.beta1);
  const Vector rest2 = hn::Set(d, 1.0F - args.beta2);
  const auto t = static_cast<double>(args.step);
  const Vector correction1 = hn::Set(d, static_cast<float>(1.0 / (1.0 - std::pow(double{args.beta1}, t))));
  const Vector correction2 = hn::Set(d, static_cast<float>(1.0 / (1.0 - std::pow(double{args.beta2}, t))));
  const Vector rate = hn::Set(d, args.learning_rate);
  const auto decay_at = [&](std::int64_t at) HWY_ATTR {
    const bool decays = args.decays.empty() || args.decays[static_cast<std::size_t>(at / AdamW::kDecayGroup)] != 0;
    return hn::Set(d, decays ? args.weight_decay : 0.0F);
  };
  const Vector epsilon = hn::Set(d, args.epsilon);
  const Vector scale = hn::Set(d, args.gradient_scale);
  ForVectors(end - begin, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    const std::int64_t at = begin + i;
    const Vector g = hn::Mul(LoadN(args.gradients.data() + at, n), scale);
    const Vector m = hn::MulAdd(beta1, LoadN(args.m.data() + at, n), hn::Mul(rest1, g));
    const Vector v = hn::MulAdd(beta2, LoadN(args.v.data() + at, n), hn::Mul(hn::Mul(rest2, g), g));
    const Vector p = LoadN(args.parameters.data() + at, n);
    const Vector denominator = hn::Add(hn::Sqrt(hn::Mul(v, correction2)), epsilon);
    const Vector change = hn::MulAdd(decay_at(at), p, hn::Div(hn::Mul(m, correction1), denominator));
    StoreN(hn::NegMulAdd(rate, change, p), args.parameters.data() + at, n);
    StoreN(m, args.m.data() + at, n);
    StoreN(v, args.v.data() + at, n);
  });
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(AdamWRange);

namespace {
constexpr std::int64_t kSumBlock = 1 << 14;
static_assert(kSumBlock % AdamW::kDecayGroup == 0);
}  // namespace

void adamw(const Device& device, const AdamW& args) {
  const auto count = static_cast<std::int64_t>(args.parameters.size());
  require(args.gradients.size() == args.parameters.size() && args.m.size() == args.parameters.size() &&
              args.v.size() == args.parameters.size(),
          "adamw: parameters, gradients, m and v differ in size");
  require(args.decays.empty() || static_cast<std::int64_t>(args.decays.size()) == ceil_div(count, AdamW::kDecayGroup),
          "adamw: {} groups that decay or not, but {} parameters", args.decays.size(), count);
  const auto run = HWY_DYNAMIC_DISPATCH(AdamWRange);
  parallel_for(ceil_div(count, kSumBlock), thread_count(device.threads), [&](std::int64_t block, int /*worker*/) {
    run(args, block * kSumBlock, std::min(count, (block + 1) * kSumBlock));
  });
}

std::size_t sum_of_squares_workspace(std::span<const float> values) {
  return static_cast<std::size_t>(ceil_div(static_cast<std::int64_t>(values.size()), kSumBlock)) * sizeof(double);
}

double sum_of_squares(const Device& device, std::span<const float> values, std::span<std::byte> workspace) {
  const auto count = static_cast<std::int64_t>(values.size());
  auto* sums = reinterpret_cast<double*>(workspace.data());  // of each block
  parallel_for(ceil_div(count, kSumBlock), thread_count(device.threads), [&](std::int64_t block, int /*worker*/) {
    const std::int64_t end = std::min(count, (block + 1) * kSumBlock);
    double sum = 0;
    for (std::int64_t i = block * kSumBlock; i < end; ++i) {
      const double value = values[static_cast<std::size_t>(i)];
      sum += value * value;
    }
    sums[block] = sum;
  });
  double total = 0;
  for (std::int64_t block = 0; block < ceil_div(count, kSumBlock); ++block) total += sums[block];
  return total;
}

double sum_of_values(const Device& /*device*/, std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum;
}

}  // namespace qdelta::cpu
#endif
