// Collectives on host memory over MPI, with sums in the order of the ranks. They run on the engine's thread.
//
// Costs, with N ranks, of B bytes in all: each rank sends B (N-1)/N bytes for a reduce_scatter or an all_gather, which
// is the least there is, straight to the rank that wants them, and twice that for an all_reduce. A reduce_scatter takes
// scratch memory for the pieces of the other ranks, at most 32 MiB (or 16 KiB per rank, if that is more).
#pragma once

#include <cstddef>
#include <span>

#include "core/dtype.h"
#include "distributed/communicator.h"
#include "distributed/mpi_engine.h"

namespace qdelta::mpi {

void reduce_scatter(Engine& engine, std::span<const float> data, std::span<float> shard);
void all_gather(Engine& engine, std::span<const std::byte> shard, std::span<std::byte> data);
void all_reduce(Engine& engine, void* data, std::size_t count, DType dtype, Reduction reduction);

}  // namespace qdelta::mpi
