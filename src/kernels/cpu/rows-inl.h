// Rows between the caller's tensors (float32 or bfloat16, any stride) and packed float32 rows padded with zeros.
#if defined(QDELTA_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QDELTA_KERNELS_CPU_ROWS_INL_H_
#undef QDELTA_KERNELS_CPU_ROWS_INL_H_
#else
#define QDELTA_KERNELS_CPU_ROWS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dtype.h"
#include "kernels/cpu/matrix-inl.h"
#include "kernels/recurrence_layout.h"
#include "rule/oracle.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// Rows of one head are a whole token apart, too far for the processor to guess where the next one is, so it is told: a
// row is asked for this many rows before its turn.
inline constexpr std::int64_t kRowsAhead = 8;

// Asks for `columns` of the row that comes kRowsAhead rows after row t, if the sequence is that long.
template <class Byte>
HWY_INLINE void PrefetchAhead(const RowsOf<Byte>& rows, std::int64_t t, std::int64_t length, std::int64_t columns) {
  if (t + kRowsAhead >= length || rows.base == nullptr || rows.step != 1) return;
  const std::byte* row = rows.row(t + kRowsAhead);
  const std::int64_t bytes = columns * static_cast<std::int64_t>(size_of(rows.dtype));
  for (std::int64_t at = 0; at < bytes; at += 64) hwy::Prefetch(row + at);
}

// out[0, count) = the row, out[count, padded) = 0.
HWY_INLINE void LoadRow(const std::byte* row, DType dtype, std::int64_t step, std::int64_t count,
                        float* HWY_RESTRICT out, std::int64_t padded) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  if (dtype == DType::f32) {
    const auto* in = reinterpret_cast<const float*>(row);
    if (step == 1) {
      for (; i + lanes <= count; i += lanes) hn::Store(hn::LoadU(d, in + i), d, out + i);
    }
    for (; i < count; ++i) out[i] = in[i * step];
  } else {
    const auto* in = reinterpret_cast<const BFloat16*>(row);
    if (step == 1) {
      const hn::RebindToUnsigned<Floats> d32;
      const hn::Rebind<std::uint16_t, Floats> d16;
      for (; i + lanes <= count; i += lanes) {
        const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(in + i)));
        hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, out + i);
      }
    }
    for (; i < count; ++i) out[i] = static_cast<float>(in[i * step]);
  }
  for (; i < padded; ++i) out[i] = 0.0F;
}

HWY_INLINE void StoreRow(std::byte* row, DType dtype, std::int64_t step, std::int64_t count,
                         const float* HWY_RESTRICT in) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  if (dtype == DType::f32) {
    auto* out = reinterpret_cast<float*>(row);
    if (step == 1) {
      for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Load(d, in + i), d, out + i);
    }
    for (; i < count; ++i) out[i * step] = in[i];
  } else {
    auto* out = reinterpret_cast<BFloat16*>(row);
    if (step == 1) {
      // Round to nearest, ties to even, as BFloat16 does; NaN keeps its upper half and is made quiet.
      const hn::RebindToUnsigned<Floats> d32;
      const hn::Rebind<std::uint16_t, Floats> d16;
      const auto half = hn::Set(d32, 0x7fffU);
      const auto one = hn::Set(d32, 1U);
      const auto quiet = hn::Set(d32, 0x400000U);
      for (; i + lanes <= count; i += lanes) {
        const auto value = hn::Load(d, in + i);
        const auto bits = hn::BitCast(d32, value);
        const auto odd = hn::And(hn::ShiftRight<16>(bits), one);
        const auto rounded = hn::Add(hn::Add(bits, half), odd);
        const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
        const auto word = hn::ShiftRight<16>(hn::IfThenElse(is_nan, hn::Or(bits, quiet), rounded));
        hn::StoreU(hn::TruncateTo(d16, word), d16, reinterpret_cast<std::uint16_t*>(out + i));
      }
    }
    for (; i < count; ++i) out[i * step] = BFloat16(in[i]);
  }
}

// Sum of a[i] b[i] over a padded row.
HWY_INLINE float Dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t padded) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  // Two sums, so that one addition need not wait for the other.
  Vector even = hn::Zero(d);
  Vector odd = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= padded; i += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), odd);
  }
  for (; i < padded; i += lanes) even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// out = factor in
HWY_INLINE void ScaleInto(float factor, const float* in, float* out, std::int64_t padded) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Vector f = hn::Set(d, factor);
  for (std::int64_t i = 0; i < padded; i += lanes) hn::Store(hn::Mul(hn::LoadU(d, in + i), f), d, out + i);
}

// out = p a + q b
HWY_INLINE void Combine(float p, const float* a, float q, const float* b, float* out, std::int64_t padded) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Vector vp = hn::Set(d, p);
  const Vector vq = hn::Set(d, q);
  for (std::int64_t i = 0; i < padded; i += lanes) {
    hn::Store(hn::MulAdd(vq, hn::Load(d, b + i), hn::Mul(vp, hn::Load(d, a + i))), d, out + i);
  }
}

// The factor that normalises a row, and its sum of squares afterwards.
struct RowNorm {
  float factor, square;
};

HWY_INLINE RowNorm NormOf(const float* row, std::int64_t padded) {
  double sum = Dot(row, row, padded);
  if (!(sum <= double{std::numeric_limits<float>::max()})) {  // the square of a long row need not be a float
    sum = 0;
    for (std::int64_t i = 0; i < padded; ++i) sum += double{row[i]} * double{row[i]};
  }
  const double factor = 1.0 / std::sqrt(sum + kNormEpsilon);
  return {static_cast<float>(factor), static_cast<float>(sum * factor * factor)};
}

// q and k times their factors in place, and x = k + mix q, in one sweep.
HWY_INLINE void ScaleAndMix(float q_factor, float k_factor, float mix, float* HWY_RESTRICT q, float* HWY_RESTRICT k,
                            float* HWY_RESTRICT x, std::int64_t padded) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < padded; i += lanes) {
    const Vector vq = hn::Mul(hn::Load(d, q + i), hn::Set(d, q_factor));
    const Vector vk = hn::Mul(hn::Load(d, k + i), hn::Set(d, k_factor));
    hn::Store(vq, d, q + i);
    hn::Store(vk, d, k + i);
    hn::Store(hn::MulAdd(hn::Set(d, mix), vq, vk), d, x + i);
  }
}

// grad <- (grad - y (y.grad)) / norm, y being the normalised row.
HWY_INLINE void NormaliseBackward(const float* y, float inverse_norm, float* grad, std::int64_t padded) {
  const float along = Dot(y, grad, padded);
  Combine(inverse_norm, grad, -inverse_norm * along, y, grad, padded);
}

// A block of columns [begin, begin + width) of a state into padded rows, and back. A missing state is zeros.
HWY_INLINE void LoadState(const StateOf<const float>& state, std::int64_t rows, std::int64_t padded_rows,
                          std::int64_t begin, std::int64_t width, std::int64_t padded, float* out, std::int64_t ld) {
  for (std::int64_t i = 0; i < padded_rows; ++i) {
    if (state.data == nullptr || i >= rows) {
      std::fill_n(out + i * ld, padded, 0.0F);
    } else {
      const float* row = state.data + i * state.row_step + begin * state.step;
      LoadRow(reinterpret_cast<const std::byte*>(row), DType::f32, state.step, width, out + i * ld, padded);
    }
  }
}

HWY_INLINE void StoreState(const StateOf<float>& state, std::int64_t rows, std::int64_t begin, std::int64_t width,
                           const float* in, std::int64_t ld) {
  if (state.data == nullptr) return;
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = state.data + i * state.row_step + begin * state.step;
    StoreRow(reinterpret_cast<std::byte*>(row), DType::f32, state.step, width, in + i * ld);
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
