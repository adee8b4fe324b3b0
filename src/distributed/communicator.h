// Communication between the processes of one training run: collectives over all ranks and messages between two.
//
// Every rank makes the same collective calls, in the same order, with the same sizes. Messages of a pair of ranks
// arrive in the order of the calls; they never wait for a collective, nor a collective for them.
//
// Memory: each call takes the device its memory lies on; Device{} is the host. On a GPU an operation starts after the
// work that was asked of the device before the call, and work asked for after the call (or after wait(), for one with a
// Request) sees its result. Memory given to an operation with a Request is left alone until wait().
//
// Sums are taken in an order that depends on the number of ranks alone, so with the same ranks the same bits come out
// of every run. Over MPI it is the order of the ranks, x0 + x1 + ... + xN-1, for every element, however a buffer is cut
// into buckets. Over NCCL it is that of NCCL's ring.
//
// Failure: a rank that cannot go on calls abort(), which ends all of them. An operation that fails calls it itself.
// A communicator that is destroyed by an exception calls it too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "kernels/device.h"

namespace qdelta {

enum class Reduction { sum, max };  // a maximum with NaN is NaN on the host; on a GPU it is NCCL's

// An operation under way. Destroyed before wait(), it waits; destroyed by an exception, it gives the operation up,
// after which abort() is all that the communicator can do.
class Request {
 public:
  class Operation {
   public:
    virtual ~Operation() = default;
    virtual void wait() = 0;
    virtual void abandon() noexcept = 0;
  };

  Request() = default;  // done
  explicit Request(std::unique_ptr<Operation> operation);
  ~Request();
  Request(Request&& other) noexcept = default;
  Request& operator=(Request&& other) noexcept;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  void wait();

 private:
  void finish() noexcept;

  std::unique_ptr<Operation> operation_;
  int exceptions_ = 0;  // that were under way when it began
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  // Among the ranks of this machine.
  [[nodiscard]] virtual int local_rank() const noexcept = 0;
  [[nodiscard]] virtual int local_size() const noexcept = 0;
  // What carries it, for a person: "MPI (Open MPI v4.1.4)".
  [[nodiscard]] virtual std::string description() const = 0;

  virtual void barrier() = 0;

  // In place, the same bits on every rank.
  void all_reduce(const Device& device, std::span<float> data, Reduction reduction);
  void all_reduce(const Device& device, std::span<double> data, Reduction reduction);
  void all_reduce(const Device& device, std::span<std::int64_t> data, Reduction reduction);

  // Sums `data`, size() shards of equal length, over the ranks; rank r gets shard r. The shard may be that part of data
  // itself. What else is in data stays.
  void reduce_scatter(const Device& device, std::span<const float> data, std::span<float> shard);
  [[nodiscard]] Request reduce_scatter_async(const Device& device, std::span<const float> data, std::span<float> shard);

  // Puts the shards of all ranks side by side. The shard may be its own part of data.
  void all_gather(const Device& device, std::span<const std::byte> shard, std::span<std::byte> data);
  [[nodiscard]] Request all_gather_async(const Device& device, std::span<const std::byte> shard,
                                         std::span<std::byte> data);

  void broadcast(const Device& device, std::span<std::byte> data, int root);

  // A send may wait for the other's recv, and over NCCL the messages of a rank go one after the other: two ranks that
  // want something of each other at the same time call send_recv.
  void send(const Device& device, std::span<const std::byte> data, int to);
  void recv(const Device& device, std::span<std::byte> data, int from);
  [[nodiscard]] Request send_async(const Device& device, std::span<const std::byte> data, int to);
  [[nodiscard]] Request recv_async(const Device& device, std::span<std::byte> data, int from);
  // Both at once. A rank of kNone: that half does not happen, so the ends of a row of ranks make the same call.
  static constexpr int kNone = -1;
  void send_recv(const Device& device, std::span<const std::byte> out, int to, std::span<std::byte> in, int from);

  // Says "rank R of N: message" on the standard error stream and ends every rank within seconds.
  [[noreturn]] void abort(std::string_view message) noexcept;

 protected:
  struct Exchange {
    std::span<const std::byte> out;
    int to = kNone;
    std::span<std::byte> in;
    int from = kNone;
  };

  virtual void end_all(std::string_view message) noexcept = 0;  // does not return
  // Called with sizes that fit each other and are not zero.
  virtual void start_all_reduce(const Device& device, void* data, std::size_t count, DType dtype,
                                Reduction reduction) = 0;
  virtual Request start_reduce_scatter(const Device& device, std::span<const float> data, std::span<float> shard) = 0;
  virtual Request start_all_gather(const Device& device, std::span<const std::byte> shard,
                                   std::span<std::byte> data) = 0;
  virtual void start_broadcast(const Device& device, std::span<std::byte> data, int root) = 0;
  virtual Request start_exchange(const Device& device, const Exchange& exchange) = 0;

 private:
  void check_peer(int peer, std::string_view what) const;
};

}  // namespace qdelta
