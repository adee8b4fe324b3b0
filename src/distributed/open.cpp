#include "distributed/open.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "distributed/mpi_communicator.h"
#include "distributed/single.h"
#ifdef QDELTA_WITH_CUDA
#include "distributed/cuda/nccl_communicator.h"
#endif

namespace qdelta {
namespace {

std::optional<int> number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view digits(text);
  int value = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), value);
  require(error == std::errc() && end == digits.end() && value >= 0,
          "the environment has {}={}, which should be a number", name, digits);
  return value;
}

#ifndef QDELTA_WITH_CUDA
// Without CUDA no Device has a GPU, so these are never called.
[[noreturn]] void no_gpu() { fail(Status::internal, "a GPU in a build without CUDA"); }
bool ranks_share_a_gpu(const Device& /*device*/, Communicator& /*ranks*/) { no_gpu(); }
std::unique_ptr<Communicator> open_nccl(const Device& /*device*/, std::shared_ptr<Communicator> /*ranks*/) { no_gpu(); }
#endif

}  // namespace

Launch find_launch() {
  if (const auto size = number_from_environment("OMPI_COMM_WORLD_SIZE")) {  // mpirun
    return {.size = *size,
            .rank = number_from_environment("OMPI_COMM_WORLD_RANK").value_or(0),
            .local_rank = number_from_environment("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0)};
  }
  // Of the step that srun started; SLURM_NTASKS would be of a whole job, and a batch script is one process.
  const int size = number_from_environment("SLURM_STEP_NUM_TASKS").value_or(1);
  if (size <= 1) return {};
  const bool connected = std::getenv("PMIX_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr;
  require(connected, "srun started {} processes that cannot find each other; start them with srun --mpi=pmix", size);
  return {.size = size,
          .rank = number_from_environment("SLURM_PROCID").value_or(0),
          .local_rank = number_from_environment("SLURM_LOCALID").value_or(0)};
}

std::unique_ptr<Communicator> open_communicator(const Device& device, Transport transport) {
  const Launch launch = find_launch();
  const bool several = launch.size > 1;
  require(transport != Transport::nccl || device.gpu != nullptr, "NCCL communicates between GPUs, and this is a CPU");
  std::unique_ptr<Communicator> host = several || transport == Transport::mpi ? open_mpi(launch.size) : open_single();
  if (device.gpu == nullptr || transport == Transport::mpi) return host;
  if (!several) return transport == Transport::nccl ? open_nccl(device, std::move(host)) : std::move(host);

  Communicator& all = *host;
  std::shared_ptr<Communicator> ranks;  // out here, so that it is there for the handler
  try {
    if (transport == Transport::automatic && ranks_share_a_gpu(device, all)) {
      if (all.rank() == 0) {
        std::fprintf(stderr, "Ranks share a GPU: they communicate through host memory, which is slow.\n");
      }
      return host;
    }
    ranks = std::move(host);
    return open_nccl(device, ranks);
  } catch (const std::exception& error) {
    all.abort(error.what());  // the others are waiting for this rank
  }
}

}  // namespace qdelta
