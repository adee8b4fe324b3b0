#include "kernels/cpu/linear_few_rows.h"

#include <algorithm>

#include "core/threads.h"
#include "kernels/cpu/view_check.h"

#define HWY_TARGET_INCLUDE "kernels/cpu/linear_few_rows.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// R rows of x with W rows of w.
template <int R, int W>
HWY_INLINE void DotTile(const float* HWY_RESTRICT x, std::int64_t x_ld, const float* HWY_RESTRICT w, std::int64_t w_ld,
                        std::int64_t inner, const float* add, std::int64_t add_ld, float* y, std::int64_t y_ld) {
  const Floats d;
  Vector sum[R][W];
  for (auto& row : sum) {
    for (Vector& value : row) value = hn::Zero(d);
  }
  ForVectors(inner, [&](std::int64_t i, std::int64_t n) HWY_ATTR {
    Vector right[W];
    for (int j = 0; j < W; ++j) right[j] = LoadN(w + j * w_ld + i, n);
    for (int r = 0; r < R; ++r) {
      const Vector left = LoadN(x + r * x_ld + i, n);
      for (int j = 0; j < W; ++j) sum[r][j] = hn::MulAdd(left, right[j], sum[r][j]);
    }
  });
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < W; ++j) {
      const float total = hn::GetLane(hn::SumOfLanes(d, sum[r][j]));
      y[r * y_ld + j] = add != nullptr ? add[r * add_ld + j] + total : total;
    }
  }
}

// Rows [begin, end) of w, with all rows of x.
void FewRows(const LinearForward& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t rows = args.x.extent(0);
  const std::int64_t inner = args.x.extent(1);
  const std::int64_t x_ld = args.x.step(0);
  const std::int64_t w_ld = args.w.step(0);
  const std::int64_t y_ld = args.y.step(0);
  const float* x = floats(args.x);
  const float* w = floats(args.w);
  const std::int64_t add_ld = args.add.step(0);
  const auto add_at = [&](std::int64_t r, std::int64_t o) {
    return args.add ? floats(args.add) + r * add_ld + o : nullptr;
  };
  float* y = floats(args.y);
  for (std::int64_t o = begin; o < end;) {
    const bool four = o + 4 <= end;
    std::int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      if (four) {
        DotTile<4, 4>(x + r * x_ld, x_ld, w + o * w_ld, w_ld, inner, add_at(r, o), add_ld, y + r * y_ld + o, y_ld);
      } else {
        DotTile<4, 1>(x + r * x_ld, x_ld, w + o * w_ld, w_ld, inner, add_at(r, o), add_ld, y + r * y_ld + o, y_ld);
      }
    }
    for (; r < rows; ++r) {
      if (four) {
        DotTile<1, 4>(x + r * x_ld, x_ld, w + o * w_ld, w_ld, inner, add_at(r, o), add_ld, y + r * y_ld + o, y_ld);
      } else {
        DotTile<1, 1>(x + r * x_ld, x_ld, w + o * w_ld, w_ld, inner, add_at(r, o), add_ld, y + r * y_ld + o, y_ld);
      }
    }
    o += four ? 4 : 1;
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(FewRows);

void linear_few_rows(const Device& device, const LinearForward& args) {
  const std::int64_t width = args.w.extent(0);
  const int threads = thread_count(device.threads);
  // Some even parts for each thread, as long as they are worth it: a thread whose core somebody else takes holds up one
  // of them, not all that it would have done.
  constexpr std::int64_t kLeastWork = 1 << 15;
  constexpr std::int64_t kParts = 4;
  const std::int64_t parts = std::clamp<std::int64_t>(width * args.x.extent(1) / kLeastWork, 1, kParts * threads);
  const std::int64_t share = round_up(ceil_div(width, parts), 4);
  const auto run = HWY_DYNAMIC_DISPATCH(FewRows);
  parallel_for_static(parts, threads, [&](std::int64_t part, int /*worker*/) {
    run(args, std::min(width, part * share), std::min(width, (part + 1) * share));
  });
}

}  // namespace qdelta::cpu
#endif
