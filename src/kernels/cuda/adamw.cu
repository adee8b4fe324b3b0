// m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   g scaled by the clipping factor
// p <- p - lr ( m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p )
// and deterministic sums of long arrays: a partial sum for each block, then one block over these.
#include <cmath>

#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"

namespace qdelta::cuda {
namespace {

struct AdamWArgs {
  float *parameters, *m, *v;
  const float* gradients;
  bf16* rounded;
  const Clipping* clipping;
  const std::uint8_t* decays;  // null: all do
  std::int64_t count;
  float learning_rate, beta1, beta2, one_minus_beta1, one_minus_beta2, bias_correction1, bias_correction2, epsilon,
      weight_decay, scale;
};

__device__ float decay_at(const AdamWArgs& a, std::int64_t at) {
  return a.decays == nullptr || a.decays[at / AdamW::kDecayGroup] != 0 ? a.weight_decay : 0.0F;
}

__device__ float adamw_update(const AdamWArgs& a, float scale, float decay, float gradient, float p, float& m,
                              float& v) {
  const float g = gradient * scale;
  m = a.beta1 * m + a.one_minus_beta1 * g;
  v = a.beta2 * v + a.one_minus_beta2 * g * g;
  const float update = m * a.bias_correction1 / (sqrtf(v * a.bias_correction2) + a.epsilon) + decay * p;
  return p - a.learning_rate * update;
}

template <int N>
__global__ __launch_bounds__(kBlockThreads) void adamw_kernel(AdamWArgs a) {
  float scale = a.scale;
  if (a.clipping != nullptr) {
    if (a.clipping->finite == 0) return;
    scale *= a.clipping->scale;
  }
  const std::int64_t at = (std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x) * N;
  if (at >= a.count) return;
  if (at + N <= a.count) {
    const auto g = Rows<const float>{a.gradients}.template load<N>(0, at);
    const auto old_p = Rows<float>{a.parameters}.template load<N>(0, at);
    const auto old_m = Rows<float>{a.m}.template load<N>(0, at);
    const auto old_v = Rows<float>{a.v}.template load<N>(0, at);
    static_assert(AdamW::kDecayGroup % N == 0);
    const float decay = decay_at(a, at);
    float p[N];
    float m[N];
    float v[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      m[i] = old_m[i];
      v[i] = old_v[i];
      p[i] = adamw_update(a, scale, decay, g[i], old_p[i], m[i], v[i]);
    }
    Rows<float>{a.parameters}.template store<N>(0, at, p);
    Rows<float>{a.m}.template store<N>(0, at, m);
    Rows<float>{a.v}.template store<N>(0, at, v);
    if (a.rounded != nullptr) Rows<bf16>{a.rounded}.template store<N>(0, at, p);
    return;
  }
  for (std::int64_t i = at; i < a.count; ++i) {
    const float p = adamw_update(a, scale, decay_at(a, i), a.gradients[i], a.parameters[i], a.m[i], a.v[i]);
    a.parameters[i] = p;
    if (a.rounded != nullptr) a.rounded[i] = bf16(p);
  }
}

// Sums ----------------------------------------------------------------------------------------------------------------
constexpr std::int64_t kSumBlocks = 1024;

template <bool Squares>
__global__ __launch_bounds__(kBlockThreads) void sum_blocks_kernel(const float* values, std::int64_t count,
                                                                   bool vectorized, double* sums) {
  __shared__ double shared[kBlockThreads / 32];
  double sum = 0;
  const auto add = [&](float value) { sum += Squares ? double{value} * double{value} : double{value}; };
  const std::int64_t stride = std::int64_t{gridDim.x} * kBlockThreads;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  const std::int64_t packs = vectorized ? count / 4 : 0;
#pragma unroll 4
  for (std::int64_t i = thread; i < packs; i += stride) {
    const float4 four = reinterpret_cast<const float4*>(values)[i];
    add(four.x);
    add(four.y);
    add(four.z);
    add(four.w);
  }
  for (std::int64_t i = 4 * packs + thread; i < count; i += stride) add(values[i]);
  sum = block_sum<kBlockThreads>(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ __launch_bounds__(kBlockThreads) void sum_partials_kernel(const double* sums, int count, double* out,
                                                                     Clipping* clipping, float max_norm) {
  __shared__ double shared[kBlockThreads / 32];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlockThreads) sum += sums[i];
  sum = block_sum<kBlockThreads>(sum, shared);
  if (threadIdx.x != 0) return;
  if (out != nullptr) *out = sum;
  if (clipping == nullptr) return;
  // Squares of floats cannot overflow a double, so the sum is finite where all of them are.
  clipping->sum_of_squares = sum;
  clipping->finite = isfinite(sum) ? 1 : 0;
  clipping->scale = max_norm > 0 ? static_cast<float>(fmin(1.0, double{max_norm} / (sqrt(sum) + 1e-6))) : 1.0F;
}

template <bool Squares>
void sum(const Context& context, std::span<const float> values, double* out, Clipping* clipping, float max_norm,
         std::span<std::byte> workspace) {
  check_workspace(workspace, sum_workspace());
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t blocks = std::clamp<std::int64_t>(ceil_div(count, 16 * kBlockThreads), 1, kSumBlocks);
  auto* sums = reinterpret_cast<double*>(workspace.data());
  const bool vectorized = reinterpret_cast<std::uintptr_t>(values.data()) % 16 == 0;
  sum_blocks_kernel<Squares>
      <<<static_cast<unsigned>(blocks), kBlockThreads, 0, context.stream()>>>(values.data(), count, vectorized, sums);
  check_launch("sum_blocks");
  sum_partials_kernel<<<1, kBlockThreads, 0, context.stream()>>>(sums, static_cast<int>(blocks), out, clipping,
                                                                 max_norm);
  check_launch("sum_partials");
}

}  // namespace

// All kernels are compiled for the same architectures, so any of them can tell.
bool has_code() {
  cudaFuncAttributes attributes{};
  const cudaError_t result = cudaFuncGetAttributes(&attributes, adamw_kernel<1>);
  if (result == cudaErrorNoKernelImageForDevice || result == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    return false;
  }
  check(result, "cudaFuncGetAttributes");
  return true;
}

void adamw(const Context& context, const AdamWDevice& device) {
  const AdamW& args = device.args;
  const auto count = static_cast<std::int64_t>(args.parameters.size());
  require(args.gradients.size() == args.parameters.size() && args.m.size() == args.parameters.size() &&
              args.v.size() == args.parameters.size(),
          "adamw: parameters, gradients, m and v differ in size");
  require(device.rounded.empty() || device.rounded.size() == args.parameters.size(),
          "adamw: {} rounded parameters, but there are {}", device.rounded.size(), count);
  require(args.decays.empty() ||
              static_cast<std::int64_t>(args.decays.size()) == (count + AdamW::kDecayGroup - 1) / AdamW::kDecayGroup,
          "adamw: {} groups that decay or not, but {} parameters", args.decays.size(), count);
  if (count == 0) return;
  const auto t = static_cast<double>(args.step);
  const AdamWArgs a{.parameters = args.parameters.data(),
                    .m = args.m.data(),
                    .v = args.v.data(),
                    .gradients = args.gradients.data(),
                    .rounded = reinterpret_cast<bf16*>(device.rounded.data()),
                    .clipping = device.clipping,
                    .decays = args.decays.empty() ? nullptr : args.decays.data(),
                    .count = count,
                    .learning_rate = args.learning_rate,
                    .beta1 = args.beta1,
                    .beta2 = args.beta2,
                    .one_minus_beta1 = 1.0F - args.beta1,
                    .one_minus_beta2 = 1.0F - args.beta2,
                    .bias_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(double{args.beta1}, t))),
                    .bias_correction2 = static_cast<float>(1.0 / (1.0 - std::pow(double{args.beta2}, t))),
                    .epsilon = args.epsilon,
                    .weight_decay = args.weight_decay,
                    .scale = args.gradient_scale};
  const auto bits = reinterpret_cast<std::uintptr_t>(a.parameters) | reinterpret_cast<std::uintptr_t>(a.m) |
                    reinterpret_cast<std::uintptr_t>(a.v) | reinterpret_cast<std::uintptr_t>(a.gradients) |
                    2 * reinterpret_cast<std::uintptr_t>(a.rounded);
  if (bits % 16 == 0) {
    adamw_kernel<4><<<blocks_for(count, 4 * kBlockThreads), kBlockThreads, 0, context.stream()>>>(a);
  } else {
    adamw_kernel<1><<<blocks_for(count, kBlockThreads), kBlockThreads, 0, context.stream()>>>(a);
  }
  check_launch("adamw");
}

void sum_of_values(const Context& context, std::span<const float> values, double* out, std::span<std::byte> workspace) {
  sum<false>(context, values, out, nullptr, 0, workspace);
}

void clip_gradients(const Context& context, std::span<const float> gradients, float max_norm, Clipping* out,
                    std::span<std::byte> workspace) {
  sum<true>(context, gradients, nullptr, out, max_norm, workspace);
}

std::size_t sum_workspace() { return kSumBlocks * sizeof(double); }

}  // namespace qdelta::cuda
