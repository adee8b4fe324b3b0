#include "cli/device_flags.h"

#include <CLI/CLI.hpp>

#include <charconv>

#include "core/error.h"

namespace qdelta {

std::shared_ptr<const cuda::Context> open_gpu_named(const std::string& device) {
  if (device == "cpu") return nullptr;
  int ordinal = 0;
  const std::string name = device.substr(0, device.find(':'));
  const std::string number = device.size() > name.size() ? device.substr(name.size() + 1) : "0";
  const char* end = number.data() + number.size();
  const auto read = std::from_chars(number.data(), end, ordinal);
  require(name == "cuda" && read.ec == std::errc() && read.ptr == end, "--device {}: there is cpu, cuda and cuda:N",
          device);
  if (!gpu_in_build()) {
    fail(Status::unsupported, "--device {}: this build has only the cpu; one with CUDA: make build CUDA=1", device);
  }
  return open_gpu(ordinal);
}

void DeviceFlags::add_to(CLI::App& command, const std::string& group) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    CLI::Option* option = command.add_option(name, value, help);
    if (!group.empty()) option->group(group);
    return option;
  };
  add("--device", device, "cpu, cuda, or cuda:1 for the second GPU")->capture_default_str();
  add("--dtype", dtype, "Of activations: f32, or bf16 on a GPU. Default: f32 on the CPU, bf16 on a GPU");
  add("--threads", threads, "Of the CPU; 0: all cores. The result does not depend on it")->capture_default_str();
}

Device DeviceFlags::open() {
  require(dtype.empty() || dtype == "f32" || dtype == "bf16", "'{}' is no dtype for activations: f32 or bf16", dtype);
  Device opened;
  opened.threads = threads;
  if (device == "cpu") {
    require(dtype != "bf16", "activations on the CPU are f32; bf16 needs --device cuda");
    return opened;
  }
  gpu_ = open_gpu_named(device);
  opened.gpu = gpu_.get();
  opened.activations = dtype == "f32" ? DType::f32 : DType::bf16;
  return opened;
}

}  // namespace qdelta
