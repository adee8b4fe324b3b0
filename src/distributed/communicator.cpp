#include "distributed/communicator.h"

#include <cstdlib>
#include <exception>
#include <utility>

#include "core/error.h"

namespace qdelta {

Request::Request(std::unique_ptr<Operation> operation)
    : operation_(std::move(operation)), exceptions_(std::uncaught_exceptions()) {}

Request::~Request() { finish(); }

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    finish();
    operation_ = std::move(other.operation_);
    exceptions_ = other.exceptions_;
  }
  return *this;
}

void Request::wait() {
  if (operation_ == nullptr) return;
  const std::unique_ptr<Operation> operation = std::move(operation_);
  operation->wait();
}

// While an exception unwinds the stack the other ranks may be waiting for something this one will never do, and to wait
// for them would keep it from reaching the handler that calls abort().
void Request::finish() noexcept {
  if (operation_ == nullptr) return;
  if (std::uncaught_exceptions() > exceptions_) {
    operation_->abandon();
    operation_ = nullptr;
  } else {
    wait();
  }
}

void Communicator::all_reduce(const Device& device, std::span<float> data, Reduction reduction) {
  if (!data.empty()) start_all_reduce(device, data.data(), data.size(), DType::f32, reduction);
}
void Communicator::all_reduce(const Device& device, std::span<double> data, Reduction reduction) {
  if (!data.empty()) start_all_reduce(device, data.data(), data.size(), DType::f64, reduction);
}
void Communicator::all_reduce(const Device& device, std::span<std::int64_t> data, Reduction reduction) {
  if (!data.empty()) start_all_reduce(device, data.data(), data.size(), DType::i64, reduction);
}

void Communicator::reduce_scatter(const Device& device, std::span<const float> data, std::span<float> shard) {
  reduce_scatter_async(device, data, shard).wait();
}

Request Communicator::reduce_scatter_async(const Device& device, std::span<const float> data, std::span<float> shard) {
  require(data.size() == shard.size() * static_cast<std::size_t>(size()),
          "reduce_scatter: {} elements are not {} shards of {}", data.size(), size(), shard.size());
  return data.empty() ? Request() : start_reduce_scatter(device, data, shard);
}

void Communicator::all_gather(const Device& device, std::span<const std::byte> shard, std::span<std::byte> data) {
  all_gather_async(device, shard, data).wait();
}

Request Communicator::all_gather_async(const Device& device, std::span<const std::byte> shard,
                                       std::span<std::byte> data) {
  require(data.size() == shard.size() * static_cast<std::size_t>(size()),
          "all_gather: {} bytes are not {} shards of {}", data.size(), size(), shard.size());
  return data.empty() ? Request() : start_all_gather(device, shard, data);
}

void Communicator::broadcast(const Device& device, std::span<std::byte> data, int root) {
  require(root >= 0 && root < size(), "broadcast: there is no rank {}, of {}", root, size());
  if (!data.empty()) start_broadcast(device, data, root);
}

void Communicator::send(const Device& device, std::span<const std::byte> data, int to) {
  send_async(device, data, to).wait();
}

void Communicator::recv(const Device& device, std::span<std::byte> data, int from) {
  recv_async(device, data, from).wait();
}

Request Communicator::send_async(const Device& device, std::span<const std::byte> data, int to) {
  check_peer(to, "send");
  return data.empty() ? Request() : start_exchange(device, {.out = data, .to = to, .in = {}, .from = kNone});
}

Request Communicator::recv_async(const Device& device, std::span<std::byte> data, int from) {
  check_peer(from, "recv");
  return data.empty() ? Request() : start_exchange(device, {.out = {}, .to = kNone, .in = data, .from = from});
}

void Communicator::send_recv(const Device& device, std::span<const std::byte> out, int to, std::span<std::byte> in,
                             int from) {
  if (to != kNone) check_peer(to, "send_recv");
  if (from != kNone) check_peer(from, "send_recv");
  const Exchange exchange{.out = out, .to = out.empty() ? kNone : to, .in = in, .from = in.empty() ? kNone : from};
  if (exchange.to != kNone || exchange.from != kNone) start_exchange(device, exchange).wait();
}

void Communicator::abort(std::string_view message) noexcept {
  end_all(message);
  std::_Exit(EXIT_FAILURE);  // GCC does not believe that a virtual function never returns
}

void Communicator::check_peer(int peer, std::string_view what) const {
  require(peer >= 0 && peer < size() && peer != rank(), "{}: rank {} of {} has no other rank {}", what, rank(), size(),
          peer);
}

}  // namespace qdelta
