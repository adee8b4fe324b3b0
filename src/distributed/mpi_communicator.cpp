#include "distributed/mpi_communicator.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/memory.h"
#include "distributed/mpi_collectives.h"
#include "distributed/mpi_engine.h"

namespace qdelta {
namespace {

using mpi::Engine;

// Host memory for an operation on the memory of a device: that memory itself, or a copy.
class Staging {
 public:
  Staging() = default;
  Staging(const Device& device, std::span<std::byte> memory) : device_(device), memory_(memory) {
    if (device.gpu != nullptr) copy_ = AlignedBuffer(memory.size(), AlignedBuffer::Fill::none);
  }
  [[nodiscard]] std::span<std::byte> host() {
    return device_.gpu == nullptr ? memory_ : std::span(copy_.data(), copy_.size());
  }
  // For memory that is only read, whose copy begins with what is in it.
  static Staging of_input(const Device& device, std::span<const std::byte> memory) {
    Staging staging(device, {const_cast<std::byte*>(memory.data()), memory.size()});
    staging.fetch();
    return staging;
  }
  void fetch() { fetch(0, memory_); }
  void fetch(std::size_t at, std::span<const std::byte> from) {
    if (device_.gpu != nullptr) download(device_, copy_.data() + at, from.data(), from.size());
  }
  void deliver() {
    if (device_.gpu != nullptr) upload(device_, memory_.data(), copy_.data(), copy_.size());
  }

 private:
  Device device_;
  std::span<std::byte> memory_;
  AlignedBuffer copy_;
};

class MpiOperation final : public Request::Operation {
 public:
  MpiOperation(Engine& engine, Staging in, Staging out) : engine_(engine), in_(std::move(in)), out_(std::move(out)) {}

  [[nodiscard]] Staging& in() { return in_; }
  [[nodiscard]] Staging& out() { return out_; }
  void add(Engine::Handle task) { tasks_.push_back(std::move(task)); }

  void wait() override {
    for (const Engine::Handle& task : tasks_) Engine::wait(task);
    out_.deliver();
  }
  void abandon() noexcept override { engine_.halt(); }

 private:
  Engine& engine_;
  Staging in_, out_;
  std::vector<Engine::Handle> tasks_;
};

std::span<float> as_floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(int expected_size) : engine_(expected_size) {}

  [[nodiscard]] int rank() const noexcept override { return engine_.rank(); }
  [[nodiscard]] int size() const noexcept override { return engine_.size(); }
  [[nodiscard]] int local_rank() const noexcept override { return engine_.local_rank(); }
  [[nodiscard]] int local_size() const noexcept override { return engine_.local_size(); }
  [[nodiscard]] std::string description() const override { return fmt::format("MPI ({})", engine_.version()); }

  void barrier() override {
    run([this] {
      Engine::Requests started;
      engine_.start_barrier(started);
      engine_.finish(started);
    });
  }

 protected:
  void end_all(std::string_view message) noexcept override { engine_.abort(message); }
  void start_all_reduce(const Device& device, void* data, std::size_t count, DType dtype,
                        Reduction reduction) override {
    Staging staging(device, {static_cast<std::byte*>(data), count * size_of(dtype)});
    staging.fetch();
    run([&] { mpi::all_reduce(engine_, staging.host().data(), count, dtype, reduction); });
    staging.deliver();
  }

  Request start_reduce_scatter(const Device& device, std::span<const float> data, std::span<float> shard) override {
    auto operation = std::make_unique<MpiOperation>(engine_, Staging::of_input(device, std::as_bytes(data)),
                                                    Staging(device, std::as_writable_bytes(shard)));
    const std::span<const float> in = as_floats(operation->in().host());
    const std::span<float> out = as_floats(operation->out().host());
    operation->add(engine_.submit([this, in, out] { mpi::reduce_scatter(engine_, in, out); }));
    return Request(std::move(operation));
  }

  Request start_all_gather(const Device& device, std::span<const std::byte> shard, std::span<std::byte> data) override {
    auto operation = std::make_unique<MpiOperation>(engine_, Staging::of_input(device, shard), Staging(device, data));
    const std::span<const std::byte> in = operation->in().host();
    const std::span<std::byte> out = operation->out().host();
    operation->add(engine_.submit([this, in, out] { mpi::all_gather(engine_, in, out); }));
    return Request(std::move(operation));
  }

  void start_broadcast(const Device& device, std::span<std::byte> data, int root) override {
    Staging staging(device, data);
    if (rank() == root) staging.fetch();
    run([&] {
      Engine::Requests started;
      engine_.start_broadcast(staging.host(), root, started);
      engine_.finish(started);
    });
    if (rank() != root) staging.deliver();
  }

  Request start_exchange(const Device& device, const Exchange& exchange) override {
    auto operation = std::make_unique<MpiOperation>(
        engine_, exchange.to == kNone ? Staging() : Staging::of_input(device, exchange.out),
        exchange.from == kNone ? Staging() : Staging(device, exchange.in));
    if (exchange.from != kNone) operation->add(engine_.recv(operation->out().host(), exchange.from));
    if (exchange.to != kNone) operation->add(engine_.send(operation->in().host(), exchange.to));
    return Request(std::move(operation));
  }

 private:
  template <class Work>
  void run(const Work& work) {
    Engine::wait(engine_.submit(work));
  }

  Engine engine_;
};

}  // namespace

std::unique_ptr<Communicator> open_mpi(int expected_size) { return std::make_unique<MpiCommunicator>(expected_size); }

}  // namespace qdelta
