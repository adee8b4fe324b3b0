// Tests that every rank of a run makes together; started by mpirun_test.cpp, or by hand:
//
//   mpirun -n 3 build/distributed_ranks [--gpu] [--gtest_filter=...]
//   build-cuda/distributed_ranks --nccl            one rank, its collectives over NCCL
//   mpirun -n 2 build/distributed_ranks --bandwidth
//   mpirun -n 3 build/distributed_ranks --fail HOW: one rank fails in this way, see ranks_failures.cpp
#include <fmt/format.h>
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string_view>

#include "core/error.h"
#include "distributed/open.h"
#include "distributed/ranks.h"
#include "distributed/ranks_modes.h"

namespace qdelta::testing {
namespace {

struct Options {
  bool gpu = false, nccl = false, bandwidth = false;
  std::string_view failure;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    options.gpu = options.gpu || word == "--gpu" || word == "--nccl";
    options.nccl = options.nccl || word == "--nccl";
    options.bandwidth = options.bandwidth || word == "--bandwidth";
    if (word == "--fail" && i + 1 < argc) options.failure = argv[++i];
  }
  return options;
}

// As training does, which stops at the next good moment when it is asked to end.
void block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

int run(const Options& options) {
  if (!options.failure.empty()) block_signals();
  std::shared_ptr<const cuda::Context> gpu;
  if (options.gpu) {
    const auto gpus = static_cast<int>(find_gpus().names.size());
    gpu = open_gpu(find_launch().local_rank % std::max(gpus, 1));
  }
  ranks.device.gpu = gpu.get();
  const std::unique_ptr<Communicator> communicator =
      open_communicator(ranks.device, options.nccl ? Transport::nccl : Transport::automatic);
  ranks.communicator = communicator.get();
  ranks.in_rank_order = communicator->description().find("NCCL") == std::string::npos;
  if (communicator->rank() == 0) fmt::print("{} ranks over {}\n", communicator->size(), communicator->description());
  if (options.bandwidth) return measure_bandwidth();
  if (!options.failure.empty()) return fail_as(options.failure);
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace qdelta::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    return qdelta::testing::run(qdelta::testing::parse(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return EXIT_FAILURE;
  }
}
