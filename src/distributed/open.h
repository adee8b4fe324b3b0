// Which communicator a process gets: one for itself alone, MPI, or NCCL. Neither library is needed to start the
// program; they are loaded when there is something to do for them.
#pragma once

#include <memory>

#include "distributed/communicator.h"

namespace qdelta {

// What the launcher (mpirun, srun) says in the environment, before any library is loaded: enough to choose a GPU.
struct Launch {
  int size = 1;
  int rank = 0;
  int local_rank = 0;
};
// Throws where a launcher started several processes that it gives no way to find each other.
[[nodiscard]] Launch find_launch();

enum class Transport {
  automatic,  // one process: none. Several: NCCL where each has a GPU of its own, else MPI (through host memory)
  mpi,
  nccl,  // with one process too, which then needs no MPI
};

// Once in a process. Collective: it returns when all ranks are there. On a GPU the device stays open as long as it.
[[nodiscard]] std::unique_ptr<Communicator> open_communicator(const Device& device,
                                                              Transport transport = Transport::automatic);

}  // namespace qdelta
