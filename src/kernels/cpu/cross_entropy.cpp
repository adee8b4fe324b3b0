// loss = log sum_v exp(z_v) - z_target;   dz = scale (softmax(z) - onehot(target)), in place of z
#include <algorithm>
#include <cmath>

#include "kernels/cpu/layers.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/view_check.h"

#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

HWY_INLINE float MaxOf(const float* z, std::int64_t width) {
  const Floats d;
  Vector most = hn::Set(d, z[0]);
  const Vector first = most;
  ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    Vector v = LoadN(z + i, n);
    if (n < static_cast<std::int64_t>(hn::Lanes(d)))
      v = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(n)), v, first);
    most = hn::Max(most, v);
  });
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// exp(z - most) for z <= most; Highway's Exp wants a bounded argument, and below -87 the result is zero anyway.
HWY_INLINE Vector ExpBelow(Vector z, Vector most) {
  const Floats d;
  return hn::Exp(d, hn::Max(hn::Sub(z, most), hn::Set(d, -87.0F)));
}

// `log_sum` may be null.
float CrossEntropyRow(float* z, std::int64_t width, std::int64_t target, bool gradient, float scale, float* log_sum) {
  const Floats d;
  const auto ignored = [&] {
    if (gradient) std::fill_n(z, width, 0.0F);
    return 0.0F;
  };
  if (target < 0 && log_sum == nullptr) return ignored();
  const float most = MaxOf(z, width);
  const Vector vmost = hn::Set(d, most);
  // Sums of sums: a large vocabulary's many small terms would be rounded away one by one against a single large sum.
  constexpr std::int64_t kPart = 1024;
  Vector sum = hn::Zero(d);
  for (std::int64_t begin = 0; begin < width; begin += kPart) {
    Vector part = hn::Zero(d);
    ForVectors(std::min(kPart, width - begin), [&](std::int64_t i, std::int64_t n) HWY_ATTR {
      Vector e = ExpBelow(LoadN(z + begin + i, n), vmost);
      if (n < static_cast<std::int64_t>(hn::Lanes(d)))
        e = hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n)), e);
      part = hn::Add(part, e);
    });
    sum = hn::Add(sum, part);
  }
  const float total = hn::GetLane(hn::SumOfLanes(d, sum));
  const float log_total = std::log(total) + most;
  if (log_sum != nullptr) *log_sum = log_total;
  if (target < 0) return ignored();
  const float loss = log_total - z[target];
  if (gradient) {
    const Vector factor = hn::Set(d, scale / total);
    ForVectors(width, [&](std::int64_t i, std::int64_t n)
                          HWY_ATTR { StoreN(hn::Mul(ExpBelow(LoadN(z + i, n), vmost), factor), z + i, n); });
    z[target] -= scale;
  }
  return loss;
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(CrossEntropyRow);

void cross_entropy(const Device& device, const CrossEntropy& args) {
  check_matrix(args.logits, "logits");
  const std::int64_t width = args.logits.extent(1);
  const std::int64_t rows = args.logits.extent(0);
  require(static_cast<std::int64_t>(args.targets.size()) == rows && static_cast<std::int64_t>(args.loss.size()) == rows,
          "cross_entropy: {} targets and {} losses for logits {}", args.targets.size(), args.loss.size(),
          args.logits.shape.text());
  require(args.log_sum.empty() || static_cast<std::int64_t>(args.log_sum.size()) == rows,
          "cross_entropy: log_sum has {} places for {} rows", args.log_sum.size(), rows);
  for (const std::int32_t target : args.targets) {
    require(target < width, "target {} is beyond the {} logits", target, width);
  }
  const auto run = HWY_DYNAMIC_DISPATCH(CrossEntropyRow);
  for_rows(device, rows, [&](std::int64_t r) {
    if (!args.best.empty()) {
      const float* z = floats(args.logits) + r * args.logits.step(0);
      args.best[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(std::max_element(z, z + width) - z);
    }
    float* const log_sum = args.log_sum.empty() ? nullptr : &args.log_sum[static_cast<std::size_t>(r)];
    args.loss[static_cast<std::size_t>(r)] =
        run(floats(args.logits) + r * args.logits.step(0), width, args.targets[static_cast<std::size_t>(r)],
            args.gradient, args.scale, log_sum);
  });
}

}  // namespace qdelta::cpu
#endif
