// What src/kernels/cuda/tensor_copy.cuh has, for tests/emulator.
#pragma once

#include <cstdint>
#include <cstring>

#include "block.h"
#include "emulated_tensor_map.h"
#include "kernels/cuda/tensor_map.h"

namespace qdelta::cuda {

class CopyBarrier {
 public:
  void init(int arrivals) { emulator::init(barrier_, arrivals); }
  void arrive() { emulator::arrive(barrier_, 0); }
  void expect(int bytes) { emulator::arrive(barrier_, bytes); }
  void wait(int parity) const { emulator::wait(barrier_, parity); }
  [[nodiscard]] emulator::Mbarrier& state() const { return barrier_; }

 private:
  mutable emulator::Mbarrier barrier_;
};

inline void named_barrier(int name, int threads) { emulator::named_barrier(name, threads); }

inline void raise_flag(std::uint32_t* flag) { *flag = 1; }
inline void wait_for_flag(const std::uint32_t* flag) {
  emulator::wait_until([=] { return *flag != 0; });
}

template <int kCount>
void keep_registers() {}
template <int kCount>
void take_registers() {}

struct BoxOrigin {
  int column, row, head, index;
};

inline void copy_box(void* to, const TensorMap& from, const BoxOrigin& at, const CopyBarrier& barrier) {
  if (reinterpret_cast<std::uintptr_t>(to) % 1024 != 0) emulator::give_up("a box not at a multiple of 1024 bytes");
  emulator::TensorMapFields map;
  std::memcpy(&map, from.opaque, sizeof(map));
  emulator::start_copy(barrier.state(), map.box_bytes(), [=] {
    map.copy_box(to, {at.column, at.row, at.head, at.index});
  });
}
inline void prefetch_map(const TensorMap& /*map*/) {}
inline void prefetch_box(const TensorMap& /*from*/, const BoxOrigin& /*at*/) {}
inline void require_vectors(const void* to, const void* from, int bytes) {
  const auto misaligned = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 != 0; };
  if (misaligned(to) || misaligned(from) || bytes % 16 != 0) emulator::give_up("a copy not of whole 16 bytes");
}
inline void copy_bytes(void* to, const void* from, int bytes, const CopyBarrier& barrier) {
  require_vectors(to, from, bytes);
  emulator::start_copy(barrier.state(), bytes, [=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
}
inline void store_bytes(void* to, const void* from, int bytes) {
  require_vectors(to, from, bytes);
  emulator::store_later([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
}
inline void wait_for_stores() { emulator::finish_stores(); }

}  // namespace qdelta::cuda
