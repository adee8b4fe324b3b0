// Both sides of kernels/overlapped_launches.h: what a kernel that overlaps says, and its launch.
#pragma once

#include "kernels/cuda/kernel_launch.h"
#include "kernels/overlapped_launches.h"

namespace qdelta::cuda {
namespace ptx {

// Nothing of these before compute capability 9.0.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define QDELTA_SM_90_ASM(...) asm volatile(__VA_ARGS__)
#else
#define QDELTA_SM_90_ASM(...)
#endif
// The next kernel may begin, once every block has said so or ended.
__device__ inline void let_next_begin() { QDELTA_SM_90_ASM("griddepcontrol.launch_dependents;" ::: "memory"); }
// Until the kernels ahead are done, and what they wrote can be read.
__device__ inline void wait_for_previous() { QDELTA_SM_90_ASM("griddepcontrol.wait;" ::: "memory"); }
// Into L2, as many bytes, of which 16 divides both.
__device__ inline void prefetch_bytes([[maybe_unused]] const void* from, [[maybe_unused]] unsigned bytes) {
  QDELTA_SM_90_ASM("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
#undef QDELTA_SM_90_ASM

}  // namespace ptx

// Compute capability, its first number.
inline int capability_of(const Context& context) {
  int major = 0;
  QDELTA_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.ordinal()));
  return major;
}
// Whether a GPU has what it takes.
inline bool can_overlap(const Context& context) { return capability_of(context) >= 9; }

// Launches a kernel that begins with ptx::wait_for_previous(), or has it before all that depends on other kernels, in
// clusters of so many blocks. Under OverlappedLaunches it may start while the one ahead still runs.
template <class... Parameters, class... Args>
void launch_overlapped_clusters(const Context& context, const char* name, void (*kernel)(Parameters...),
                                unsigned cluster, dim3 grid, dim3 block, std::size_t shared, const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = context.stream();
  config.attrs = attributes;
  if (OverlappedLaunches::on() && can_overlap(context)) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& clusters = attributes[config.numAttrs++];
    clusters.id = cudaLaunchAttributeClusterDimension;
    clusters.val.clusterDim = {cluster, 1, 1};
  }
  check(cudaLaunchKernelEx(&config, kernel, args...), name);
}
template <class... Parameters, class... Args>
void launch_overlapped(const Context& context, const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                       std::size_t shared, const Args&... args) {
  launch_overlapped_clusters(context, name, kernel, 1, grid, block, shared, args...);
}

}  // namespace qdelta::cuda
