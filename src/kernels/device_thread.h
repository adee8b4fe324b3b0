// A GPU is chosen thread by thread.
#pragma once

#include "kernels/device.h"

namespace qdelta {

// A thread other than the one that opened a GPU calls this before it uses it; nothing happens on the CPU.
void use_in_this_thread(const Device& device);

}  // namespace qdelta
