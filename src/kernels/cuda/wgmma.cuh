// Products of a warpgroup, four warps together, of operands in shared memory (wgmma). Compute capability 9.0a alone;
// elsewhere nothing of this may be launched.
//
// c += a b^T is 64 x N: warp w has rows 16 w to 16 w + 15, c[n] is an m16n8k16's C for columns 8 n to 8 n + 7. A sum
// has the bits that m16n8k16 gives it, seen on an H200.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace qdelta::cuda {

// Code for another architecture that runs on 9.0 all the same (PTX of 8.0) ends with an error, not with wrong numbers.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QDELTA_WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#elif defined(__CUDA_ARCH__)
#define QDELTA_WGMMA_ASM(...) __trap()
#else
#define QDELTA_WGMMA_ASM(...)
#endif

// What this thread wrote to shared memory can be read by products, once a barrier has told those who start them.
__device__ inline void publish_to_wgmma() { QDELTA_WGMMA_ASM("fence.proxy.async.shared::cta;" ::: "memory"); }
// Sums that were read or written before it may be those of the products after it.
__device__ inline void wgmma_begin() { QDELTA_WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
// The products since the last one go on together; until they are done.
__device__ inline void wgmma_commit() { QDELTA_WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_wait() { QDELTA_WGMMA_ASM("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// An operand: rows of 64 elements of 16 bits, 16 bytes p of row r at place p ^ (r % 8), the first row at a multiple of
// 1024 bytes. `first` are the 16 bytes of a row at which the 16 elements of a product begin.
__device__ inline std::uint64_t wgmma_operand(const void* rows, int first) {
  constexpr std::uint64_t k128ByteSwizzle = std::uint64_t{1} << 62U;
  constexpr std::uint64_t kBetweenEightRows = std::uint64_t{1024 / 16} << 32U;
  const std::uint64_t address = ptx::shared_address(rows) + static_cast<unsigned>(first) * 16;
  return (address & 0x3ffffU) >> 4U | std::uint64_t{1} << 16U | kBetweenEightRows | k128ByteSwizzle;
}

// c = a b^T, or c += a b^T where `adds`.
__device__ inline void wgmma_bf16(float (&c)[2][4], std::uint64_t a, std::uint64_t b, bool adds) {
  QDELTA_WGMMA_ASM(
      "{ .reg .pred adds; setp.ne.b32 adds, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7}, "
      "%8, %9, adds, 1, 1, 0, 0; }"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3])
      : "l"(a), "l"(b), "r"(adds ? 1 : 0));
}
__device__ inline void wgmma_bf16(float (&c)[4][4], std::uint64_t a, std::uint64_t b, bool adds) {
  QDELTA_WGMMA_ASM(
      "{ .reg .pred adds; setp.ne.b32 adds, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, adds, 1, 1, 0, 0; }"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3])
      : "l"(a), "l"(b), "r"(adds ? 1 : 0));
}
__device__ inline void wgmma_bf16(float (&c)[8][4], std::uint64_t a, std::uint64_t b, bool adds) {
  QDELTA_WGMMA_ASM(
      "{ .reg .pred adds; setp.ne.b32 adds, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, adds, 1, 1, 0, 0; }"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
        "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
      : "l"(a), "l"(b), "r"(adds ? 1 : 0));
}

#undef QDELTA_WGMMA_ASM

}  // namespace qdelta::cuda
