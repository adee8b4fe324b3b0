// What src/kernels/cuda/ptx.cuh has, for tests/emulator: the instructions as PTX's documentation describes them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "block.h"

namespace qdelta::cuda::ptx {

// For instructions that are not emulated, of kernels that do not run here.
inline std::uint32_t shared_address(const void* /*pointer*/) { return 0; }

inline float exp2_approx(float x) { return std::exp2(x); }
inline float reciprocal_approx(float x) { return 1.0F / x; }
inline void hide_from_compiler(unsigned& /*value*/) {}

template <class T>
T load_or_zero(const void* from, bool valid) {
  T value{};
  if (valid) std::memcpy(&value, from, sizeof(T));
  return value;
}
inline std::uint16_t load_2_bytes(const void* from, bool valid) { return load_or_zero<std::uint16_t>(from, valid); }
inline float load_float(const void* from, bool valid) { return load_or_zero<float>(from, valid); }
inline uint2 load_8_bytes(const void* from, bool valid) { return load_or_zero<uint2>(from, valid); }
inline uint4 load_16_bytes(const void* from, bool valid) { return load_or_zero<uint4>(from, valid); }

template <class T>
void store_if(void* to, const T& value, bool valid) {
  if (valid) std::memcpy(to, &value, sizeof(T));
}
inline void store_2_bytes(void* to, std::uint16_t bits, bool valid) { store_if(to, bits, valid); }
inline void store_float(void* to, float value, bool valid) { store_if(to, value, valid); }
inline void store_8_bytes(void* to, uint2 packed, bool valid) { store_if(to, packed, valid); }
template <class T>
void store_vector(void* to, const T& vector) {
  store_if(to, vector, true);
}
inline void prefetch(const void* /*from*/) {}

inline void cp_async(void* to, const void* from, bool valid) { emulator::copy_later(to, from, valid); }
inline void cp_async_commit() { emulator::commit_copies(); }
template <int kNewest>
void cp_async_wait() {
  emulator::wait_for_copies(kNewest);
}

// What the lanes of a warp give to an instruction together.
template <class T>
struct FromLanes {
  const unsigned char* data;
  FromLanes(const char* name, const T& own) : data(emulator::warp_exchange(name, &own, sizeof(T))) {}
  T operator[](int lane) const {
    T value;
    std::memcpy(&value, data + static_cast<std::size_t>(lane) * sizeof(T), sizeof(T));
    return value;
  }
};

inline void ldmatrix(const char* name, std::uint32_t (&x)[4], const void* row, bool transposed) {
  const FromLanes<const std::uint16_t*> rows(name, static_cast<const std::uint16_t*>(row));
  const int group = emulator::lane() / 4;
  const int quad = emulator::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const auto at = [&](int r, int c) { return std::uint32_t{rows[8 * i + r][c]}; };
    x[i] = transposed ? at(2 * quad, group) | at(2 * quad + 1, group) << 16U
                      : at(group, 2 * quad) | at(group, 2 * quad + 1) << 16U;
  }
}
inline void ldmatrix_x4(std::uint32_t (&x)[4], const void* row) { ldmatrix("ldmatrix", x, row, false); }
inline void ldmatrix_x4_trans(std::uint32_t (&x)[4], const void* row) { ldmatrix("ldmatrix.trans", x, row, true); }

inline constexpr bool kHasStmatrix = true;
inline void stmatrix_x4(void* row, const std::uint32_t (&x)[4]) {
  const FromLanes<std::array<std::uint32_t, 4>> lanes("stmatrix", {x[0], x[1], x[2], x[3]});
  const int matrix = emulator::lane() / 8;
  for (int quad = 0; quad < 4; ++quad) {
    const std::uint32_t pair = lanes[emulator::lane() % 8 * 4 + quad][static_cast<std::size_t>(matrix)];
    std::memcpy(static_cast<unsigned char*>(row) + 4 * quad, &pair, sizeof(pair));
  }
}

inline std::uint32_t transpose_8x8(std::uint32_t pair) {
  const FromLanes<std::uint32_t> pairs("movmatrix", pair);
  const int group = emulator::lane() / 4;
  const int quad = emulator::lane() % 4;
  const auto at = [&](int r, int c) { return pairs[4 * r + c / 2] >> (c % 2 * 16) & 0xffffU; };
  return at(2 * quad, group) | at(2 * quad + 1, group) << 16U;
}

struct MmaOperands {
  std::uint32_t a[4], b[2];
};
inline float bits_to_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// c[i] is element (group + 8 (i / 2), 2 quad + i % 2). `a_at(operands, m, k)` and `b_at(operands, n, k)` read elements.
template <int kInner, class A, class B>
void mma(const char* name, float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const A& a_at,
         const B& b_at) {
  const FromLanes<MmaOperands> lanes(name, {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  const int group = emulator::lane() / 4;
  const int quad = emulator::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    double sum = 0;
    for (int k = 0; k < kInner; ++k) {
      sum += double{a_at(lanes, group + i / 2 * 8, k)} * double{b_at(lanes, 2 * quad + i % 2, k)};
    }
    c[i] = static_cast<float>(c[i] + sum);
  }
}
inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const auto half = [](std::uint32_t pair, int k) {
    return bits_to_float(k % 2 == 0 ? pair << 16U : pair & 0xffff0000U);
  };
  mma<16>(
      "mma.bf16", c, a, b,
      [&](const auto& lanes, int m, int k) { return half(lanes[m % 8 * 4 + k % 8 / 2].a[m / 8 + k / 8 * 2], k); },
      [&](const auto& lanes, int n, int k) { return half(lanes[n * 4 + k % 8 / 2].b[k / 8], k); });
}
inline void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const auto tf32 = [](std::uint32_t bits) { return bits_to_float(bits & 0xffffe000U); };
  mma<8>(
      "mma.tf32", c, a, b,
      [&](const auto& lanes, int m, int k) { return tf32(lanes[m % 8 * 4 + k % 4].a[m / 8 + k / 4 * 2]); },
      [&](const auto& lanes, int n, int k) { return tf32(lanes[n * 4 + k % 4].b[k / 4]); });
}

}  // namespace qdelta::cuda::ptx
