// The communicator of a process by itself.
#pragma once

#include <memory>

#include "distributed/communicator.h"

namespace qdelta {

[[nodiscard]] std::unique_ptr<Communicator> open_single();

}  // namespace qdelta
