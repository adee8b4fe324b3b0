// The communicator over MPI. Memory of a GPU goes through host memory.
#pragma once

#include <memory>

#include "distributed/communicator.h"

namespace qdelta {

[[nodiscard]] std::unique_ptr<Communicator> open_mpi(int expected_size);

}  // namespace qdelta
