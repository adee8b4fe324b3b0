// y = silu(z) u,  silu(z) = z sigmoid(z)
//   backward:  du = dy silu(z),   dz = dy u sigmoid(z) (1 + z (1 - sigmoid(z)))
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"
#include "kernels/cuda/overlapped_launch.cuh"

namespace qdelta::cuda {
namespace {

// A thread for each pack of a row.
template <class T>
struct SwigluArgs {
  Rows<T> z, u, dy;
  Rows<T> y, dz, du;
  unsigned packs;  // of a row
  std::int64_t count;
};

template <class T, int N>
__global__ __launch_bounds__(kBlockThreads) void swiglu_forward_kernel(SwigluArgs<T> a) {
  ptx::let_next_begin();
  ptx::wait_for_previous();
  const std::int64_t index = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (index >= a.count) return;
  const unsigned row = static_cast<unsigned>(index) / a.packs;
  const unsigned c = (static_cast<unsigned>(index) - row * a.packs) * N;
  const auto z = a.z.template load<N>(row, c);
  const auto u = a.u.template load<N>(row, c);
  float y[N];
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = z[i] * sigmoid(z[i]) * u[i];
  a.y.template store<N>(row, c, y);
}

template <class T, int N>
__global__ __launch_bounds__(kBlockThreads) void swiglu_backward_kernel(SwigluArgs<T> a) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (index >= a.count) return;
  const unsigned row = static_cast<unsigned>(index) / a.packs;
  const unsigned c = (static_cast<unsigned>(index) - row * a.packs) * N;
  const auto z = a.z.template load<N>(row, c);
  const auto u = a.u.template load<N>(row, c);
  const auto dy = a.dy.template load<N>(row, c);
  float dz[N];
  float du[N];
  float y[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float s = sigmoid(z[i]);
    dz[i] = dy[i] * u[i] * silu_derivative(z[i], s);
    du[i] = dy[i] * (z[i] * s);
    y[i] = z[i] * s * u[i];
  }
  a.dz.template store<N>(row, c, dz);
  a.du.template store<N>(row, c, du);
  if (a.y.data != nullptr) a.y.template store<N>(row, c, y);
}

template <class T>
SwigluArgs<T> swiglu_args(const ConstTensorView& gate, const ConstTensorView& up) {
  SwigluArgs<T> a{};
  a.z = as_rows<T>(gate);
  a.u = as_rows<T>(up);
  a.packs = static_cast<unsigned>(gate.extent(1) / kVectorWidth<T>);
  a.count = gate.extent(0) * a.packs;
  check_count(a.count, "swiglu");
  return a;
}

}  // namespace

void swiglu_forward(const Context& context, const SwigluForward& args) {
  check_matrix(args.gate, "gate");
  check_matrix(args.up, args.gate.shape, "up");
  check_matrix(args.y, args.gate.shape, "y");
  check_same_type("swiglu", args.gate, {args.up, args.y});
  if (args.gate.shape.elements() == 0) return;
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    SwigluArgs<T> a = swiglu_args<T>(args.gate, args.up);
    a.y = as_rows<T>(args.y);
    launch_overlapped(context, "swiglu_forward", swiglu_forward_kernel<T, kVectorWidth<T>>,
                      blocks_for(a.count, kBlockThreads), kBlockThreads, 0, a);
  };
  if (!aligned(args.gate.dtype == DType::bf16 ? 8 : 4, {args.gate, args.up, args.y}))
    return run(TypeTag<RuntimeType>());
  dispatch_dtype(args.gate.dtype, run);
}

void swiglu_backward(const Context& context, const SwigluBackward& args) {
  check_matrix(args.gate, "gate");
  check_matrix(args.up, args.gate.shape, "up");
  check_matrix(args.dy, args.gate.shape, "dy");
  check_matrix(args.dgate, args.gate.shape, "dgate");
  check_matrix(args.dup, args.gate.shape, "dup");
  if (args.y) check_matrix(args.y, args.gate.shape, "y");
  check_same_type("swiglu", args.gate, {args.up, args.dy, args.dgate, args.dup, args.y});
  if (args.gate.shape.elements() == 0) return;
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    SwigluArgs<T> a = swiglu_args<T>(args.gate, args.up);
    a.dy = as_rows<T>(args.dy);
    a.dz = as_rows<T>(args.dgate);
    a.du = as_rows<T>(args.dup);
    a.y = as_rows<T>(args.y);
    swiglu_backward_kernel<T, kVectorWidth<T>>
        <<<blocks_for(a.count, kBlockThreads), kBlockThreads, 0, context.stream()>>>(a);
    check_launch("swiglu_backward");
  };
  if (!aligned(args.gate.dtype == DType::bf16 ? 8 : 4, {args.gate, args.up, args.dy, args.dgate, args.dup, args.y}))
    return run(TypeTag<RuntimeType>());
  dispatch_dtype(args.gate.dtype, run);
}

}  // namespace qdelta::cuda
