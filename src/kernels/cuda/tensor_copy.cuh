// Copies by the copy engine (bulk copies). To shared memory, boxes of a tensor or bytes in a row: one thread starts
// them, an mbarrier says when they have arrived. From shared memory bytes in a row: who starts them waits for them.
// Compute capability 9.0; before it nothing of this may be launched.
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

// An mbarrier in shared memory. Its phases end when so many threads have arrived and all bytes that they announced are
// there.
class CopyBarrier {
 public:
  // By one thread; a barrier of the block must follow.
  __device__ void init([[maybe_unused]] int arrivals) {
    QDELTA_COPY_ASM("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(address()),
                    "r"(arrivals)
                    : "memory");
  }
  __device__ void arrive() { QDELTA_COPY_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory"); }
  // Arrives; so many bytes will come in this phase. By the thread that then starts the copies.
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

// Of some of a block's warps, so many threads together; 0 is the barrier of all.
__device__ inline void named_barrier([[maybe_unused]] int name, [[maybe_unused]] int threads) {
  QDELTA_COPY_ASM("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// A flag in global memory, zero at first, from one thread to a thread of another block: what the first one and those it
// had a barrier with wrote before is there for the other one after.
__device__ inline void raise_flag([[maybe_unused]] std::uint32_t* flag) {
  QDELTA_COPY_ASM("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
__device__ inline void wait_for_flag([[maybe_unused]] const std::uint32_t* flag) {
  QDELTA_COPY_ASM(
      "{ .reg .pred waits; .reg .u32 value;\n"
      "again: ld.acquire.gpu.global.u32 value, [%0];\n"
      "setp.eq.u32 waits, value, 0;\n"
      "@waits bra again; }" ::"l"(flag)
      : "memory");
}

// Moves registers from one warpgroup to another: a warpgroup that only copies gives away what it does not need before
// the others ask for more than the kernel was launched with. Compute capability 9.0a; elsewhere nothing happens.
template <int kCount>
__device__ inline void keep_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ inline void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

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
// What the copy engine must know of a tensor, so that its first copy does not wait for it.
__device__ inline void prefetch_map([[maybe_unused]] const TensorMap& map) {
  QDELTA_COPY_ASM("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
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
// The other way. What threads wrote to `from` they fence (fence_async_proxy) and pass a barrier before.
__device__ inline void store_bytes([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                                   [[maybe_unused]] int bytes) {
  QDELTA_COPY_ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                  "r"(ptx::shared_address(from)), "r"(bytes)
                  : "memory");
  QDELTA_COPY_ASM("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the thread's stores have read shared memory, which may then be written again or given back.
__device__ inline void wait_for_stores() { QDELTA_COPY_ASM("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

#undef QDELTA_COPY_ASM

}  // namespace qdelta::cuda
