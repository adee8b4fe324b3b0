// The communicator over NCCL: one GPU per rank. Collectives on host memory, and all that is not data, go over the
// communicator that connects the ranks (MPI, or that of a single process).
#pragma once

#include <memory>

#include "distributed/communicator.h"

namespace qdelta {

// Whether any two ranks use the same GPU, which NCCL refuses. Collective.
[[nodiscard]] bool ranks_share_a_gpu(const Device& device, Communicator& ranks);
[[nodiscard]] std::unique_ptr<Communicator> open_nccl(const Device& device, std::shared_ptr<Communicator> ranks);

}  // namespace qdelta
