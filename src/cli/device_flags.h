// The flags that say what to run on.
#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"

namespace CLI {
class App;
}

namespace qdelta {

// Opens the GPU that `device` names: cuda or cuda:N. Null for cpu.
[[nodiscard]] std::shared_ptr<const cuda::Context> open_gpu_named(const std::string& device);

struct DeviceFlags {
  std::string device = "cpu";
  std::string dtype;
  int threads = 0;

  void add_to(CLI::App& command, const std::string& group = "");
  // Opens the GPU where one is asked for; the flags must live as long as the device.
  [[nodiscard]] Device open();

 private:
  std::shared_ptr<const cuda::Context> gpu_;
};

}  // namespace qdelta
