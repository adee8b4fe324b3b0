// Products of a warpgroup, four warps together (wgmma). Compute capability 9.0a alone; elsewhere nothing of this may be
// launched. They are asynchronous: between wgmma_commit and wgmma_wait neither sums nor operands may be touched.
//
// c += a b^T is 64 x N: warp w has rows 16 w to 16 w + 15, c[n] is an m16n8k16's C for columns 8 n to 8 n + 7. A sum
// has the bits that m16n8k16 gives it, seen on an H200.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cuda/accumulator.cuh"
#include "kernels/cuda/ptx.cuh"

namespace qdelta::cuda {

// Code for another architecture that runs on 9.0 all the same (PTX of 8.0) ends with an error, not with wrong numbers.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWgmma = true;
#define QDELTA_WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#elif defined(__CUDA_ARCH__)
inline constexpr bool kHasWgmma = false;
#define QDELTA_WGMMA_ASM(...) __trap()
#else
inline constexpr bool kHasWgmma = false;
#define QDELTA_WGMMA_ASM(...)
#endif

// Makes this thread's writes to shared memory visible to products, which read through the async proxy. A barrier must
// follow.
__device__ inline void fence_async_proxy() {
  if constexpr (kHasWgmma) QDELTA_WGMMA_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
// Sums that were read or written before it may be those of the products after it.
__device__ inline void wgmma_begin() { QDELTA_WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
// The products since the last one go on together; until they are done.
__device__ inline void wgmma_commit() { QDELTA_WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_wait() { QDELTA_WGMMA_ASM("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// Keeps the compiler from moving accesses to the accumulators across this point.
template <int kCount>
__device__ inline void fence_accumulators(Accumulator (&accs)[kCount]) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (([&] {
       asm volatile("" : "+f"(accs[I].x[0]), "+f"(accs[I].x[1]), "+f"(accs[I].x[2]), "+f"(accs[I].x[3])::"memory");
     }()),
     ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

// An operand that begins so many bytes behind `tile`: rows of 64 elements of 16 bits, 16 bytes p of row r at place
// p ^ (r % 8), the first row at a multiple of 1024 bytes. What is contiguous in a row is the inner dimension, or, where
// B is transposed, its columns; then kLeading is how many bytes further the next 64 of them are.
template <int kLeading = 16>
__device__ inline std::uint64_t wgmma_operand(const void* tile, int bytes) {
  constexpr std::uint64_t k128ByteSwizzle = std::uint64_t{1} << 62U;
  constexpr std::uint64_t kBetweenEightRows = std::uint64_t{1024 / 16} << 32U;
  const std::uint32_t address = ptx::shared_address(tile) + static_cast<std::uint32_t>(bytes);
  return k128ByteSwizzle | kBetweenEightRows | std::uint64_t{kLeading / 16} << 16U | (address & 0x3ffffU) >> 4U;
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

#define QDELTA_ACC(i) "+f"(acc[i].x[0]), "+f"(acc[i].x[1]), "+f"(acc[i].x[2]), "+f"(acc[i].x[3])
#define QDELTA_ACC4(i) QDELTA_ACC(i), QDELTA_ACC(i + 1), QDELTA_ACC(i + 2), QDELTA_ACC(i + 3)
#define QDELTA_OPERANDS_10(a) \
  "%" #a "0, %" #a "1, %" #a "2, %" #a "3, %" #a "4, %" #a "5, %" #a "6, %" #a "7, %" #a "8, %" #a "9, "
#define QDELTA_OPERANDS_0_TO_9 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "

// acc[0 .. kColumns / 8) += A B for the kColumns columns of B that start at `b`, A in registers. Products in flight on
// the same accumulators must have the same shape.
template <int kColumns, bool kTransposed>
__device__ inline void wgmma(Accumulator* acc, const std::uint32_t (&a)[4], std::uint64_t b) {
  static_assert(kColumns == 64 || kColumns == 128);
  if constexpr (kColumns == 64) {
    QDELTA_WGMMA_ASM("{ .reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" QDELTA_OPERANDS_0_TO_9 QDELTA_OPERANDS_10(1) QDELTA_OPERANDS_10(2) "%30, %31}, "
                 "{%32, %33, %34, %35}, %36, add, 1, 1, %37; }"
                 : QDELTA_ACC4(0), QDELTA_ACC4(4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  } else {
    QDELTA_WGMMA_ASM(
        "{ .reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{" QDELTA_OPERANDS_0_TO_9 QDELTA_OPERANDS_10(1) QDELTA_OPERANDS_10(2) QDELTA_OPERANDS_10(3)
            QDELTA_OPERANDS_10(4)
                QDELTA_OPERANDS_10(5) "%60, %61, %62, %63}, {%64, %65, %66, %67}, %68, add, 1, 1, %69; }"
        : QDELTA_ACC4(0), QDELTA_ACC4(4), QDELTA_ACC4(8), QDELTA_ACC4(12)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  }
}
// The same with A from shared memory too, its 64 rows from `a` on (a descriptor as of a B that is not transposed).
template <int kColumns>
__device__ inline void wgmma(Accumulator* acc, std::uint64_t a, std::uint64_t b) {
  static_assert(kColumns == 64 || kColumns == 128);
  if constexpr (kColumns == 64) {
    QDELTA_WGMMA_ASM("{ .reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" QDELTA_OPERANDS_0_TO_9 QDELTA_OPERANDS_10(1) QDELTA_OPERANDS_10(2) "%30, %31}, "
                 "%32, %33, add, 1, 1, 0, 0; }"
                 : QDELTA_ACC4(0), QDELTA_ACC4(4)
                 : "l"(a), "l"(b));
  } else {
    QDELTA_WGMMA_ASM(
        "{ .reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{" QDELTA_OPERANDS_0_TO_9 QDELTA_OPERANDS_10(1) QDELTA_OPERANDS_10(2) QDELTA_OPERANDS_10(3)
            QDELTA_OPERANDS_10(4) QDELTA_OPERANDS_10(5) "%60, %61, %62, %63}, %64, %65, add, 1, 1, 0, 0; }"
        : QDELTA_ACC4(0), QDELTA_ACC4(4), QDELTA_ACC4(8), QDELTA_ACC4(12)
        : "l"(a), "l"(b));
  }
}
#undef QDELTA_ACC
#undef QDELTA_ACC4
#undef QDELTA_OPERANDS_10
#undef QDELTA_OPERANDS_0_TO_9
#undef QDELTA_WGMMA_ASM

}  // namespace qdelta::cuda
