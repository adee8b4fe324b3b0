#include "cli/ranks.h"

#include <chrono>
#include <exception>
#include <thread>

#include "core/error.h"
#include "core/threads.h"
#include "distributed/open.h"

namespace qdelta {
namespace {

Transport transport_named(const std::string& name) {
  if (name == "auto") return Transport::automatic;
  if (name == "mpi") return Transport::mpi;
  require(name == "nccl", "--transport {}: there is auto, mpi and nccl", name);
  return Transport::nccl;
}

}  // namespace

Ranks::Ranks(DeviceFlags& flags, const std::string& transport) {
  const Transport chosen = transport_named(transport);
  const Launch launch = find_launch();
  if (flags.device == "cuda" && launch.size > 1) {
    const auto gpus = static_cast<int>(find_gpus().names.size());
    if (gpus > 0) flags.device = "cuda:" + std::to_string(launch.local_rank % gpus);
  }
  device_ = flags.open();
  if (launch.size == 1 && chosen == Transport::automatic) return;
  communicator_ = open_communicator(device_, chosen);
  if (device_.threads == 0) device_.threads = std::max(thread_count(0) / communicator_->local_size(), 1);
}

void Ranks::barrier() const {
  if (communicator_ != nullptr) communicator_->barrier();
}

void Ranks::run(const std::function<void()>& work) const {
  if (communicator_ == nullptr || size() == 1) return work();
  try {
    work();
  } catch (const std::exception& error) {
    // What is wrong for all of them, rank 0 says for all of them.
    if (!first()) std::this_thread::sleep_for(std::chrono::seconds(2));
    communicator_->abort(error.what());
  }
}

}  // namespace qdelta
