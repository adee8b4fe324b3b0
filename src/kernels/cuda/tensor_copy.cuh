// Copies of boxes of a tensor to shared memory by the copy engine (bulk tensor copies): one thread starts them, an
// mbarrier says when they have arrived. Compute capability 9.0; before it nothing of this may be launched.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor_map.h"

namespace qdelta::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define QDELTA_COPY_ASM(...) asm volatile(__VA_ARGS__)
#elif defined(__CUDA_ARCH__)
#define QDELTA_COPY_ASM(...) __trap()
#else
#define QDELTA_COPY_ASM(...)
#endif

// An mbarrier in shared memory whose phases end when all bytes that one thread has announced are there.
class CopyBarrier {
 public:
  // By one thread; a barrier of the block must follow.
  __device__ void init() {
    QDELTA_COPY_ASM("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(address())
                    : "memory");
  }
  // So many bytes will come in this phase. By the thread that then starts the copies.
  __device__ void expect([[maybe_unused]] int bytes) {
    QDELTA_COPY_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  // Until the phase of this parity is over: 0 for the first one, then 1, 0, ...
  __device__ void wait([[maybe_unused]] int parity) const {
    QDELTA_COPY_ASM(
        "{ .reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
  [[nodiscard]] __device__ std::uint32_t address() const { return ptx::shared_address(this); }

 private:
  std::uint64_t state_;
};

// Where a box begins: columns, rows, head, index.
struct BoxOrigin {
  int column, row, head, index;
};

// The box that begins there, as a tile with the 128-byte swizzle (Tile in matrix_tile.cuh).
__device__ inline void copy_box([[maybe_unused]] void* to, [[maybe_unused]] const TensorMap& from,
                                [[maybe_unused]] const BoxOrigin& at, [[maybe_unused]] const CopyBarrier& barrier) {
  QDELTA_COPY_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(ptx::shared_address(to)),
      "l"(&from), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.index), "r"(barrier.address())
      : "memory");
}
// Into L2 alone.
__device__ inline void prefetch_box([[maybe_unused]] const TensorMap& from, [[maybe_unused]] const BoxOrigin& at) {
  QDELTA_COPY_ASM("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&from),
                  "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.index)
                  : "memory");
}
// Bytes in a row, both places and their number multiples of 16.
__device__ inline void copy_bytes([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                                  [[maybe_unused]] int bytes, [[maybe_unused]] const CopyBarrier& barrier) {
  QDELTA_COPY_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                      ptx::shared_address(to)),
                  "l"(from), "r"(bytes), "r"(barrier.address())
                  : "memory");
}

#undef QDELTA_COPY_ASM

}  // namespace qdelta::cuda
