// Clusters: blocks that run at the same time and read each other's shared memory. Compute capability 9.0; before it
// nothing of this may be launched.
#pragma once

#include "kernels/cuda/ptx.cuh"

namespace qdelta::cuda {

// All threads of a cluster; what they wrote to shared memory can be read by all.
__device__ inline void cluster_barrier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Into `to` what block `block` of the cluster has where this one has `own`, in shared memory: one float, or four.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ inline std::uint32_t address_in_block(const void* own, int block) {
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(ptx::shared_address(own)), "r"(block));
  return address;
}
__device__ inline void load_from_block(float (&to)[1], const void* own, int block) {
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(to[0]) : "r"(address_in_block(own, block)));
}
__device__ inline void load_from_block(float (&to)[4], const void* own, int block) {
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "r"(address_in_block(own, block)));
}
#else
template <int kCount>
__device__ void load_from_block(float (&to)[kCount], const void* /*own*/, int /*block*/) {
  for (float& each : to) each = 0;
}
#endif

}  // namespace qdelta::cuda
