#include "kernels/cuda/overlapped_launch.cuh"
#include "kernels/cuda/step_product.cuh"

namespace qdelta::cuda {
namespace {

// What is not in a product of many rows, with the bits that it has in one of few -------------------------------------

__global__ __launch_bounds__(kBlockThreads) void norm_rows_kernel(const __grid_constant__ StepProductArgs a) {
  __shared__ float sums[kBlockThreads / 32][1];
  ptx::let_next_begin();
  if (blockIdx.x == 0) prefetch_norm_weights<kBlockThreads>(a.norm_weight, a.inner);
  ptx::wait_for_previous();
  const auto r = static_cast<int>(blockIdx.x);
  normalise<1>(a, r, sums, a.normed + r * a.normed_ld, a.normed_ld);
}

// A warp for each head of each row.
__global__ __launch_bounds__(kBlockThreads) void norm_heads_kernel(const __grid_constant__ StepProductArgs a) {
  const auto i = static_cast<int>(blockIdx.x * (kBlockThreads / 32) + threadIdx.x / 32);
  const int r = i / a.heads;
  ptx::let_next_begin();
  if (blockIdx.x == 0) prefetch_norm_weights<kBlockThreads>(a.norm_weight, a.head_width);
  ptx::wait_for_previous();
  if (r < a.rows) normalise_head(a, r, i - r * a.heads, a.normed + r * a.normed_ld);
}

// The convolution of `y`, in a launch of its own: a thread for a channel of kConvThreadRows rows.
constexpr int kConvThreadRows = 4;
__global__ __launch_bounds__(kBlockThreads) void conv_rows_kernel(const __grid_constant__ StepProductArgs a) {
  const auto c = static_cast<int>(blockIdx.x * kBlockThreads + threadIdx.x);
  const auto first = static_cast<int>(blockIdx.y) * kConvThreadRows;
  ptx::let_next_begin();
  ConvTap taps[kConvThreadRows];
#pragma unroll
  for (int i = 0; i < kConvThreadRows; ++i) taps[i] = ConvTap(a, first + i, c);
  ptx::wait_for_previous();
#pragma unroll
  for (int i = 0; i < kConvThreadRows; ++i) {
    const int r = first + i;
    if (r >= a.rows || c >= a.channels) continue;
    a.conv_y.set(r * a.conv_y.ld + c, taps[i].next(a, a.y.get(r * a.y.ld + c)));
  }
}

// Whether shapes, types and alignments fit ---------------------------------------------------------------------------

// Rows of 16 bytes.
bool wide(const ConstTensorView& view) { return aligned(16 / static_cast<int>(size_of(view.dtype)), {view}); }

bool is_bf16(const ConstTensorView& view) { return view.dtype == DType::bf16; }

bool fits_before(const StepProduct& p) {
  if (p.norm != nullptr) {
    return p.norm->x.dtype == DType::f32 && wide(p.norm->x) && wide(p.norm->weight) && !p.norm->inverse_rms;
  }
  if (p.gated_norm != nullptr) {
    const std::int64_t width = p.gated_norm->weight.shape.elements();
    return is_bf16(p.gated_norm->x) && wide(p.gated_norm->x) && width % 8 == 0 && width <= kHeadPacks * 256 &&
           (!p.gated_norm->gate || wide(p.gated_norm->gate)) &&
           reinterpret_cast<std::uintptr_t>(p.gated_norm->weight.data) % 32 == 0;
  }
  return true;
}

bool fits_after(const StepProduct& p) {
  if (p.swiglu != nullptr) return !p.linear.add;
  if (p.conv == nullptr) return true;
  return !p.linear.add && !p.conv->bias && p.conv->weight.extent(1) <= kMostTaps &&
         (!p.conv->state || p.conv->state.dtype == DType::f32);
}

bool has_wgmma(const Context& context) { return capability_of(context) == 9; }

// Whether a block has room for so many rows in few_rows_product.
bool fits_few(const Context& context, std::int64_t rows, std::int64_t inner) {
  return few_rows_shared(rows, inner) <=
         static_cast<std::size_t>(std::min<std::int64_t>(kMostFewRowsShared, context.shared_memory() - (16 << 10)));
}

// Arguments ----------------------------------------------------------------------------------------------------------

void set_conv(StepProductArgs& a, const ShortConvForward& conv) {
  const TensorView& state = conv.state;
  a.channels = static_cast<int>(conv.weight.extent(0));
  a.taps = static_cast<int>(conv.weight.extent(1));
  a.conv_weight = floats(conv.weight);
  a.conv_state = a.taps > 1 ? floats(state) : nullptr;
  if (state) {
    a.conv_state_stride = state.step(0);
    a.conv_state_ld = state.step(1);
    a.conv_pool = state.extent(0);
  }
  if (conv.evicted && a.conv_state != nullptr) {
    a.evicted = {floats(conv.evicted), conv.evicted.step(0), conv.evicted.step(1)};
  }
  a.slots = conv.slots.data();
  a.conv_y = as_rows<RuntimeType>(conv.y);
}

StepProductArgs arguments(const StepProduct& p) {
  StepProductArgs a{};
  const ConstTensorView& x = p.norm != nullptr ? p.norm->x : p.gated_norm != nullptr ? p.gated_norm->x : p.linear.x;
  a.x = x.data;
  a.x_ld = x.step(0);
  if (p.norm != nullptr) {
    a.norm_weight = floats(p.norm->weight);
    a.epsilon = p.norm->epsilon;
    a.normed = reinterpret_cast<bf16*>(p.norm->y.data);
  }
  if (p.gated_norm != nullptr) {
    a.norm_weight = floats(p.gated_norm->weight);
    a.epsilon = p.gated_norm->epsilon;
    a.gate = reinterpret_cast<const bf16*>(p.gated_norm->gate.data);
    a.gate_ld = p.gated_norm->gate ? p.gated_norm->gate.step(0) : 0;
    a.head_width = static_cast<int>(p.gated_norm->weight.shape.elements());
    a.heads = static_cast<int>(x.extent(1)) / a.head_width;
    a.activation = p.gated_norm->activation;
    a.normed = reinterpret_cast<bf16*>(p.gated_norm->y.data);
  }
  a.normed_ld = p.linear.x.step(0);
  const ConstTensorView& w = p.linear.w;
  a.w = reinterpret_cast<const bf16*>(w.data);
  a.w_ld = w.step(0);
  a.rows = static_cast<int>(x.extent(0));
  a.inner = static_cast<int>(w.extent(1));
  a.outputs = static_cast<int>(p.swiglu != nullptr ? w.extent(0) / 2 : w.extent(0));
  a.slice_width = static_cast<int>(round_up(ceil_div(a.inner, kSlices), 2 * kStep));
  a.add = as_rows<RuntimeType>(p.linear.add);
  a.y = as_rows<RuntimeType>(p.swiglu != nullptr ? p.swiglu->y : p.linear.y);
  if (p.conv != nullptr) set_conv(a, *p.conv);
  return a;
}

// Rows from `first` on.
StepProductArgs rows_of(const StepProductArgs& all, Before before, int first, int count) {
  StepProductArgs a = all;
  const auto forward = [&](Rows<RuntimeType>& rows) {
    if (rows.data == nullptr) return;
    rows.data = static_cast<std::byte*>(rows.data) + first * rows.ld * (rows.is_bf16 ? 2 : 4);
  };
  a.rows = count;
  a.x = static_cast<const std::byte*>(all.x) + first * all.x_ld * (before == Before::norm ? 4 : 2);
  if (a.gate != nullptr) a.gate += first * a.gate_ld;
  if (a.slots != nullptr) {
    a.slots += first;
  } else if (a.conv_state != nullptr) {
    a.conv_state += first * a.conv_state_stride;
    a.conv_pool -= first;
    if (a.evicted.data != nullptr) a.evicted.data += first * a.evicted.slot_stride;
  }
  forward(a.add);
  forward(a.y);
  forward(a.conv_y);
  return a;
}

}  // namespace

bool fits_step_product(const Context& context, const StepProduct& p) {
  const ConstTensorView& w = p.linear.w;
  return p.linear.x.extent(0) >= 1 && is_bf16(p.linear.x) && wide(p.linear.x) && is_bf16(w) && wide(w) &&
         w.extent(0) > 0 && w.extent(1) > 0 && w.extent(1) % 8 == 0 && w.shape.elements() < (std::int64_t{1} << 31) &&
         fits_few(context, 1, w.extent(1)) && fits_before(p) && fits_after(p);
}

void step_product(const Context& context, const StepProduct& p) {
  StepProductArgs a = arguments(p);
  const Before before = p.norm != nullptr         ? Before::norm
                        : p.gated_norm != nullptr ? Before::gated_norm
                                                  : Before::nothing;
  const After after = p.conv != nullptr ? After::conv : p.swiglu != nullptr ? After::swiglu : After::nothing;
  if (a.rows <= kFusedRows || !has_wgmma(context)) {
    const int most = fits_few(context, kFewRows, a.inner) ? static_cast<int>(kFewRows) : 1;
    for (int first = 0; first < a.rows; first += most) {
      few_rows_product(context, before, after, rows_of(a, before, first, std::min(most, a.rows - first)));
    }
    return;
  }
  if (before == Before::norm) {
    launch_overlapped(context, "norm_rows", norm_rows_kernel, static_cast<unsigned>(a.rows), kBlockThreads, 0, a);
  } else if (before == Before::gated_norm) {
    launch_overlapped(context, "norm_heads", norm_heads_kernel,
                      blocks_for(std::int64_t{a.rows} * a.heads, kBlockThreads / 32), kBlockThreads, 0, a);
  }
  if (before != Before::nothing) {
    a.x = a.normed;
    a.x_ld = a.normed_ld;
  }
  if (after == After::conv && a.rows > kConvRows) {
    many_rows_product(context, After::nothing, a);
    const dim3 grid(blocks_for(a.channels, kBlockThreads), blocks_for(a.rows, kConvThreadRows));
    return launch_overlapped(context, "conv_rows", conv_rows_kernel, grid, kBlockThreads, 0, a);
  }
  many_rows_product(context, after, a);
}

}  // namespace qdelta::cuda
