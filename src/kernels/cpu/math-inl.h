// Elementary functions on vectors of float32.
#if defined(QDELTA_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QDELTA_KERNELS_CPU_MATH_INL_H_
#undef QDELTA_KERNELS_CPU_MATH_INL_H_
#else
#define QDELTA_KERNELS_CPU_MATH_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

// 1 / (1 + exp(-x)): exp of a large argument is infinite, and its inverse zero, as it should be.
HWY_INLINE Vector Sigmoid(Vector x) {
  const Floats d;
  const Vector one = hn::Set(d, 1.0F);
  // Highway's Exp is made for a bounded range; beyond 88 the result is 0 or 1 to the last bit anyway.
  const Vector bounded = hn::Min(hn::Max(x, hn::Set(d, -88.0F)), hn::Set(d, 88.0F));
  return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Neg(bounded))));
}

// Calls body(offset, count) for whole vectors of a row, then once for what is left (count < lanes).
template <class Body>
HWY_INLINE void ForVectors(std::int64_t length, const Body& body) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  std::int64_t i = 0;
  for (; i + lanes <= length; i += lanes) body(i, lanes);
  if (i < length) body(i, length - i);
}

// The first `count` floats; lanes beyond are zero, respectively left alone in memory.
HWY_INLINE Vector LoadN(const float* from, std::int64_t count) {
  const Floats d;
  if (count == static_cast<std::int64_t>(hn::Lanes(d))) return hn::LoadU(d, from);
#if HWY_MEM_OPS_MIGHT_FAULT
  // Here a masked load reads what it leaves out: another thread's, or nobody's.
  HWY_ALIGN float values[hn::MaxLanes(Floats())] = {};
  for (std::int64_t i = 0; i < count; ++i) values[i] = from[i];
  return hn::Load(d, values);
#else
  return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(count)), d, from);
#endif
}
HWY_INLINE void StoreN(Vector value, float* to, std::int64_t count) {
  const Floats d;
  if (count == static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::StoreU(value, d, to);
  } else {
    hn::BlendedStore(value, hn::FirstN(d, static_cast<std::size_t>(count)), d, to);
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
