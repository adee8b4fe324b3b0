// rms_norm:    y = w x s,  s = 1 / sqrt(mean x^2 + eps)
//   backward:  with n = x s = y / w: dx += s (w dy - n mean(dy y)),   dw += sum over rows of dy n
// gated_norm, per head of width V:  y = w x s a(z), a silu or sigmoid;  without z: y = w x s
//   backward:  with e = dy a(z): dx = s (w e - x s^2 mean(w e x)),   dw += sum of e x s,   dz = dy w x s a'(z)
//              silu'(z) = sigmoid(z) (1 + z (1 - sigmoid(z))),   sigmoid'(z) = sigmoid(z) (1 - sigmoid(z))
#include "core/threads.h"
#include "kernels/cpu/layers.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/view_check.h"

#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

HWY_INLINE float InverseRms(const float* x, std::int64_t width, float epsilon) {
  const Floats d;
  Vector sum = hn::Zero(d);
  ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    const Vector v = LoadN(x + i, n);
    sum = hn::MulAdd(v, v, sum);
  });
  return 1.0F / std::sqrt(hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<float>(width) + epsilon);
}

// Weights that can be divided by. Beyond the last of them LoadN gives zeros, so that those quotients are finite, too.
HWY_INLINE Vector LoadNormWeight(const float* weight, std::int64_t n) {
  const Vector least = hn::Set(Floats(), kLeastNormWeight);
  const Vector w = LoadN(weight, n);
  return hn::IfThenElse(hn::Lt(hn::Abs(w), least), least, w);
}

float NormRow(const float* x, const float* weight, float* y, std::int64_t width, float epsilon) {
  const Floats d;
  const float s = InverseRms(x, width, epsilon);
  ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    StoreN(hn::Mul(hn::Mul(LoadN(x + i, n), hn::Set(d, s)), LoadNormWeight(weight + i, n)), y + i, n);
  });
  return s;
}

// dx += ..., dweight += ... for one row.
void NormRowBackward(const float* y, const float* weight, float s, const float* dy, float* dx, float* dweight,
                     std::int64_t width) {
  const Floats d;
  Vector sum = hn::Zero(d);
  ForVectors(width, [&](std::int64_t i, std::int64_t n)
                        HWY_ATTR { sum = hn::MulAdd(LoadN(dy + i, n), LoadN(y + i, n), sum); });
  const float along = hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<float>(width);
  ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    const Vector w = LoadNormWeight(weight + i, n);
    const Vector normed = hn::Div(LoadN(y + i, n), w);
    const Vector vdy = LoadN(dy + i, n);
    const Vector change = hn::NegMulAdd(normed, hn::Set(d, along), hn::Mul(w, vdy));
    StoreN(hn::MulAdd(change, hn::Set(d, s), LoadN(dx + i, n)), dx + i, n);
    StoreN(hn::MulAdd(vdy, normed, LoadN(dweight + i, n)), dweight + i, n);
  });
}

// The activation of an output gate and its derivative.
struct Activated {
  Vector value, slope;
};
HWY_INLINE Activated Activate(Vector z, GateActivation activation) {
  const Vector one = hn::Set(Floats(), 1.0F);
  const Vector sigmoid = Sigmoid(z);
  const Vector rest = hn::Sub(one, sigmoid);
  if (activation == GateActivation::sigmoid) return {sigmoid, hn::Mul(sigmoid, rest)};
  return {hn::Mul(z, sigmoid), hn::Mul(sigmoid, hn::MulAdd(z, rest, one))};
}

void GatedRow(const float* x, const float* gate, const float* weight, float* y, std::int64_t width, float epsilon,
              GateActivation activation) {
  const Floats d;
  const float s = InverseRms(x, width, epsilon);
  ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    Vector v = hn::Mul(hn::Mul(LoadN(x + i, n), hn::Set(d, s)), LoadN(weight + i, n));
    if (gate != nullptr) v = hn::Mul(v, Activate(LoadN(gate + i, n), activation).value);
    StoreN(v, y + i, n);
  });
}

// dx, dgate and y are written, dweight += ...
void GatedRowBackward(const float* x, const float* gate, const float* weight, const float* dy, float* dx, float* dgate,
                      float* y, float* dweight, std::int64_t width, float epsilon, GateActivation activation) {
  const Floats d;
  const float s = InverseRms(x, width, epsilon);
  // First e = dy a(z) into dx, with its sum against w x; dz; y.
  Vector sum = hn::Zero(d);
  ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    Vector e = LoadN(dy + i, n);
    const Vector vx = LoadN(x + i, n);
    const Vector w = LoadN(weight + i, n);
    Vector normed = hn::Mul(hn::Mul(vx, hn::Set(d, s)), w);
    if (gate != nullptr) {
      const Activated a = Activate(LoadN(gate + i, n), activation);
      StoreN(hn::Mul(hn::Mul(e, normed), a.slope), dgate + i, n);
      e = hn::Mul(e, a.value);
      normed = hn::Mul(normed, a.value);
    }
    sum = hn::MulAdd(hn::Mul(w, e), vx, sum);
    StoreN(e, dx + i, n);
    if (y != nullptr) StoreN(normed, y + i, n);
  });
  const float along = hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<float>(width) * s * s;
  ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    const Vector vx = LoadN(x + i, n);
    const Vector e = LoadN(dx + i, n);
    StoreN(hn::MulAdd(hn::Mul(e, vx), hn::Set(d, s), LoadN(dweight + i, n)), dweight + i, n);
    const Vector change = hn::NegMulAdd(vx, hn::Set(d, along), hn::Mul(LoadN(weight + i, n), e));
    StoreN(hn::Mul(change, hn::Set(d, s)), dx + i, n);
  });
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(NormRow);
HWY_EXPORT(NormRowBackward);
HWY_EXPORT(GatedRow);
HWY_EXPORT(GatedRowBackward);

void rms_norm_forward(const Device& device, const RmsNormForward& args) {
  check_matrix(args.x, "x");
  check_matrix(args.y, "y");
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t width = args.x.extent(1);
  check_vector(args.weight, width, "weight");
  const auto run = HWY_DYNAMIC_DISPATCH(NormRow);
  for_rows(device, rows, [&](std::int64_t r) {
    const float s = run(floats(args.x) + r * args.x.step(0), floats(args.weight), floats(args.y) + r * args.y.step(0),
                        width, args.epsilon);
    if (args.inverse_rms) floats(args.inverse_rms)[r] = s;
  });
}

std::size_t rms_norm_backward_workspace(const RmsNormBackward& args) {
  return RowSums(args.y.extent(0), args.y.extent(1)).bytes();
}

void rms_norm_backward(const Device& device, const RmsNormBackward& args, std::span<std::byte> workspace) {
  check_matrix(args.y, "y");
  check_matrix(args.dy, "dy");
  check_matrix(args.dx, "dx");
  const std::int64_t rows = args.y.extent(0);
  const std::int64_t width = args.y.extent(1);
  check_vector(args.weight, width, "weight");
  check_vector(args.dweight, width, "dweight");
  check_vector(args.inverse_rms, rows, "inverse_rms");
  const auto run = HWY_DYNAMIC_DISPATCH(NormRowBackward);
  auto* partial = reinterpret_cast<float*>(workspace.data());
  sum_over_rows(device, {rows, width}, partial, floats(args.dweight), [&](std::int64_t r, float* sums) {
    run(floats(args.y) + r * args.y.step(0), floats(args.weight), floats(args.inverse_rms)[r],
        floats(args.dy) + r * args.dy.step(0), floats(args.dx) + r * args.dx.step(0), sums, width);
  });
}

void gated_norm_forward(const Device& device, const GatedNormForward& args) {
  check_matrix(args.x, "x");
  check_matrix(args.y, "y");
  if (args.gate) check_matrix(args.gate, "gate");
  const std::int64_t width = args.weight.shape.elements();
  const std::int64_t heads = args.x.extent(1) / width;
  const auto run = HWY_DYNAMIC_DISPATCH(GatedRow);
  for_rows(device, args.x.extent(0), [&](std::int64_t r) {
    for (std::int64_t h = 0; h < heads; ++h) {
      run(floats(args.x) + r * args.x.step(0) + h * width,
          args.gate ? floats(args.gate) + r * args.gate.step(0) + h * width : nullptr, floats(args.weight),
          floats(args.y) + r * args.y.step(0) + h * width, width, args.epsilon, args.activation);
    }
  });
}

std::size_t gated_norm_backward_workspace(const GatedNormBackward& args) {
  return RowSums(args.x.extent(0), args.weight.shape.elements()).bytes();
}

void gated_norm_backward(const Device& device, const GatedNormBackward& args, std::span<std::byte> workspace) {
  check_matrix(args.x, "x");
  check_matrix(args.dy, "dy");
  check_matrix(args.dx, "dx");
  if (args.y) check_matrix(args.y, "y");
  require(static_cast<bool>(args.gate) == static_cast<bool>(args.dgate), "gate and dgate go together");
  const std::int64_t width = args.weight.shape.elements();
  const std::int64_t heads = args.x.extent(1) / width;
  check_vector(args.dweight, width, "dweight");
  const auto run = HWY_DYNAMIC_DISPATCH(GatedRowBackward);
  auto* partial = reinterpret_cast<float*>(workspace.data());
  sum_over_rows(device, {args.x.extent(0), width}, partial, floats(args.dweight), [&](std::int64_t r, float* sums) {
    for (std::int64_t h = 0; h < heads; ++h) {
      run(floats(args.x) + r * args.x.step(0) + h * width,
          args.gate ? floats(args.gate) + r * args.gate.step(0) + h * width : nullptr, floats(args.weight),
          floats(args.dy) + r * args.dy.step(0) + h * width, floats(args.dx) + r * args.dx.step(0) + h * width,
          args.dgate ? floats(args.dgate) + r * args.dgate.step(0) + h * width : nullptr,
          args.y ? floats(args.y) + r * args.y.step(0) + h * width : nullptr, sums, width, args.epsilon,
          args.activation);
    }
  });
}

}  // namespace qdelta::cpu
#endif
