// y = silu(z) u,  silu(z) = z sigmoid(z)
//   backward:  du = dy silu(z),   dz = dy u sigmoid(z) (1 + z (1 - sigmoid(z)))
#include "kernels/cpu/layers.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/view_check.h"

#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

void SwigluRow(const float* z, const float* u, float* y, std::int64_t width) {
  ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    const Vector vz = LoadN(z + i, n);
    StoreN(hn::Mul(hn::Mul(vz, Sigmoid(vz)), LoadN(u + i, n)), y + i, n);
  });
}

void SwigluRowBackward(const float* z, const float* u, const float* dy, float* dz, float* du, float* y,
                       std::int64_t width) {
  const Vector one = hn::Set(Floats(), 1.0F);
  ForVectors(width, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    const Vector vz = LoadN(z + i, n);
    const Vector vdy = LoadN(dy + i, n);
    const Vector s = Sigmoid(vz);
    const Vector slope = hn::Mul(s, hn::MulAdd(vz, hn::Sub(one, s), one));
    const Vector vu = LoadN(u + i, n);
    const Vector silu = hn::Mul(vz, s);
    StoreN(hn::Mul(hn::Mul(vdy, vu), slope), dz + i, n);
    StoreN(hn::Mul(vdy, silu), du + i, n);
    if (y != nullptr) StoreN(hn::Mul(silu, vu), y + i, n);
  });
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(SwigluRow);
HWY_EXPORT(SwigluRowBackward);

void swiglu_forward(const Device& device, const SwigluForward& args) {
  check_matrix(args.gate, "gate");
  check_matrix(args.up, "up");
  check_matrix(args.y, "y");
  const auto run = HWY_DYNAMIC_DISPATCH(SwigluRow);
  for_rows(device, args.y.extent(0), [&](std::int64_t r) {
    run(floats(args.gate) + r * args.gate.step(0), floats(args.up) + r * args.up.step(0),
        floats(args.y) + r * args.y.step(0), args.y.extent(1));
  });
}

void swiglu_backward(const Device& device, const SwigluBackward& args) {
  check_matrix(args.gate, "gate");
  check_matrix(args.up, "up");
  check_matrix(args.dy, "dy");
  check_matrix(args.dgate, "dgate");
  check_matrix(args.dup, "dup");
  if (args.y) check_matrix(args.y, "y");
  const auto run = HWY_DYNAMIC_DISPATCH(SwigluRowBackward);
  for_rows(device, args.dy.extent(0), [&](std::int64_t r) {
    run(floats(args.gate) + r * args.gate.step(0), floats(args.up) + r * args.up.step(0),
        floats(args.dy) + r * args.dy.step(0), floats(args.dgate) + r * args.dgate.step(0),
        floats(args.dup) + r * args.dup.step(0), args.y ? floats(args.y) + r * args.y.step(0) : nullptr,
        args.dy.extent(1));
  });
}

}  // namespace qdelta::cpu
#endif
