// A command that mpirun or srun may start several times: its ranks, and how they fail together.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/device_flags.h"
#include "distributed/communicator.h"

namespace CLI {
class App;
}

namespace qdelta {

// The ranks that a command runs on. One process without a launcher has no communicator.
class Ranks {
 public:
  // Opens the device of this rank (where they are not told apart by --device, ranks of a machine take its GPUs in turn,
  // and share its cores) and finds the others. `transport`: auto, mpi or nccl.
  Ranks(DeviceFlags& flags, const std::string& transport);

  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] Communicator* communicator() const { return communicator_.get(); }
  [[nodiscard]] int rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  [[nodiscard]] int size() const { return communicator_ == nullptr ? 1 : communicator_->size(); }
  [[nodiscard]] bool first() const { return rank() == 0; }
  void barrier() const;

  // Runs `work`; an error of one rank ends all of them, with a message that names it.
  void run(const std::function<void()>& work) const;

 private:
  Device device_;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace qdelta
