// What src/kernels/cuda/cluster.cuh has, for tests/emulator.
#pragma once

#include <cstring>

#include "block.h"

namespace qdelta::cuda {

inline void cluster_barrier() { emulator::cluster_barrier(); }

template <int kCount>
void load_from_block(float (&to)[kCount], const void* own, int block) {
  std::memcpy(to, emulator::in_block(own, block), sizeof(to));
}

}  // namespace qdelta::cuda
