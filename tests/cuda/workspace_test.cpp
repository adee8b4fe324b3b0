// Scratch memory and captured graphs: what a graph points to stays, and nothing moves while one is captured.
#include "kernels/workspace.h"

#include <gtest/gtest.h>

#include <vector>

#include "cuda/device.h"
#include "kernels/cuda/graph.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

Device gpu() { return {.gpu = &device_context()}; }

TEST(WorkspaceOnGpu, DoesNotGrowWhileAGraphIsCaptured) {
  QDELTA_NEEDS_DEVICE();
  Workspace workspace(gpu());
  const std::byte* before = workspace.get(256).data();
  expect_error(Status::internal, {"256 bytes", "1024 are needed", "captured"},
               [&] { return cuda::capture(device_context(), [&] { static_cast<void>(workspace.get(1024)); }); });
  EXPECT_EQ(workspace.get(256).data(), before);
  EXPECT_EQ(workspace.get(1024).size(), 1024U);  // now it may
}

TEST(WorkspaceOnGpu, KeepsWhatAGraphPointsTo) {
  QDELTA_NEEDS_DEVICE();
  const Device device = gpu();
  Workspace workspace(device);
  const std::span<std::byte> memory = workspace.get(256);
  const auto graph = cuda::capture(device_context(), [&] {
    const std::span<std::byte> scratch = workspace.get(256);
    clear(device, scratch.data(), scratch.size());
  });
  EXPECT_NE(workspace.get(std::size_t{1} << 20).data(), memory.data());
  std::vector<std::byte> host(256, std::byte{0xff});
  upload(device, memory.data(), host.data(), host.size());
  cuda::launch(device_context(), *graph);
  download(device, host.data(), memory.data(), host.size());
  EXPECT_EQ(host, std::vector<std::byte>(256));
}

TEST(WorkspaceOnGpu, ForgetsGraphs) {
  QDELTA_NEEDS_DEVICE();
  Workspace workspace(gpu());
  static_cast<void>(workspace.get(256));
  static_cast<void>(cuda::capture(device_context(), [&] { static_cast<void>(workspace.get(256)); }));
  static_cast<void>(workspace.get(std::size_t{1} << 20));
  EXPECT_EQ(workspace.bytes(), (std::size_t{1} << 20) + 256);
  workspace.forget_graphs();
  EXPECT_EQ(workspace.bytes(), std::size_t{1} << 20);
}

}  // namespace
}  // namespace qdelta::testing
