#include "distributed/single.h"

#include <cstdio>
#include <cstdlib>

#include "core/error.h"

namespace qdelta {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int size() const noexcept override { return 1; }
  [[nodiscard]] int local_rank() const noexcept override { return 0; }
  [[nodiscard]] int local_size() const noexcept override { return 1; }
  [[nodiscard]] std::string description() const override { return "one process"; }

  void barrier() override {}

 protected:
  void end_all(std::string_view message) noexcept override {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
    std::_Exit(EXIT_FAILURE);
  }
  void start_all_reduce(const Device& /*device*/, void* /*data*/, std::size_t /*count*/, DType /*dtype*/,
                        Reduction /*reduction*/) override {}
  Request start_reduce_scatter(const Device& device, std::span<const float> data, std::span<float> shard) override {
    if (shard.data() != data.data()) copy_on_device(device, shard.data(), data.data(), data.size_bytes());
    return {};
  }
  Request start_all_gather(const Device& device, std::span<const std::byte> shard, std::span<std::byte> data) override {
    if (shard.data() != data.data()) copy_on_device(device, data.data(), shard.data(), data.size());
    return {};
  }
  void start_broadcast(const Device& /*device*/, std::span<std::byte> /*data*/, int /*root*/) override {}
  Request start_exchange(const Device& /*device*/, const Exchange& /*exchange*/) override {
    fail(Status::internal, "a message between ranks where there is one");  // there is no peer to name
  }
};

}  // namespace

std::unique_ptr<Communicator> open_single() { return std::make_unique<SingleCommunicator>(); }

}  // namespace qdelta
