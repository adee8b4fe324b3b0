#include "distributed/cuda/nccl_communicator.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "core/error.h"
#include "distributed/cuda/nccl_library.h"
#include "kernels/gpu_stream.h"

namespace qdelta {
namespace {

// A NCCL communicator and the stream of its operations. Collectives and messages have one each, so that they do not
// wait for one another.
class Channel {
 public:
  Channel() = default;
  ~Channel() {
    if (comm_ == nullptr) return;
    stream_.synchronize();
    nccl::library().comm_destroy(comm_);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void connect(Communicator& ranks) {
    const nccl::Library& library = nccl::library();
    nccl::UniqueId id{};
    const auto check = [&](int result, const char* call) {
      if (result != nccl::kSuccess) {
        fail(Status::internal, "{}: {} ({})", call, library.get_error_string(result), library.get_last_error(nullptr));
      }
    };
    if (ranks.rank() == 0) check(library.get_unique_id(&id), "ncclGetUniqueId");
    ranks.broadcast(Device{}, std::as_writable_bytes(std::span(id.internal)), 0);
    check(library.comm_init_rank(&comm_, ranks.size(), id, ranks.rank()), "ncclCommInitRank");
  }
  void stop() noexcept {
    if (comm_ != nullptr) nccl::library().comm_abort(comm_);
    comm_ = nullptr;
  }

  [[nodiscard]] nccl::Comm comm() const { return comm_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
  // What is asked of the channel from here on happens after what was asked of `stream`.
  void follow(cudaStream_t stream) {
    before_.record(stream);
    before_.hold_back(stream_.get());
  }

 private:
  nccl::Comm comm_ = nullptr;
  GpuStream stream_;
  GpuEvent before_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Device& device, std::shared_ptr<Communicator> ranks)
      : device_(device), ranks_(std::move(ranks)), exceptions_(std::uncaught_exceptions()) {
    collectives_.connect(*ranks_);
    if (size() > 1) messages_.connect(*ranks_);
  }
  ~NcclCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_) stop();
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] int rank() const noexcept override { return ranks_->rank(); }
  [[nodiscard]] int size() const noexcept override { return ranks_->size(); }
  [[nodiscard]] int local_rank() const noexcept override { return ranks_->local_rank(); }
  [[nodiscard]] int local_size() const noexcept override { return ranks_->local_size(); }
  [[nodiscard]] std::string description() const override {
    return fmt::format("{}, {}", nccl::version(library_), ranks_->description());
  }

  void barrier() override { ranks_->barrier(); }

 protected:
  void end_all(std::string_view message) noexcept override { ranks_->abort(message); }
  void start_all_reduce(const Device& device, void* data, std::size_t count, DType dtype,
                        Reduction reduction) override {
    if (device.gpu == nullptr) return reduce_on_host(data, count, dtype, reduction);
    start(device, collectives_, [&](nccl::Comm comm, cudaStream_t stream) {
      const int type = dtype == DType::f32 ? nccl::kFloat32 : dtype == DType::f64 ? nccl::kFloat64 : nccl::kInt64;
      const int operation = reduction == Reduction::sum ? nccl::kSum : nccl::kMax;
      check(library_.all_reduce(data, data, count, type, operation, comm, stream), "ncclAllReduce");
    }).wait();
  }

  Request start_reduce_scatter(const Device& device, std::span<const float> data, std::span<float> shard) override {
    if (device.gpu == nullptr) return ranks_->reduce_scatter_async(device, data, shard);
    return start(device, collectives_, [&](nccl::Comm comm, cudaStream_t stream) {
      check(library_.reduce_scatter(data.data(), shard.data(), shard.size(), nccl::kFloat32, nccl::kSum, comm, stream),
            "ncclReduceScatter");
    });
  }

  Request start_all_gather(const Device& device, std::span<const std::byte> shard, std::span<std::byte> data) override {
    if (device.gpu == nullptr) return ranks_->all_gather_async(device, shard, data);
    return start(device, collectives_, [&](nccl::Comm comm, cudaStream_t stream) {
      check(library_.all_gather(shard.data(), data.data(), shard.size(), nccl::kUint8, comm, stream), "ncclAllGather");
    });
  }

  void start_broadcast(const Device& device, std::span<std::byte> data, int root) override {
    if (device.gpu == nullptr) return ranks_->broadcast(device, data, root);
    start(device, collectives_, [&](nccl::Comm comm, cudaStream_t stream) {
      check(library_.broadcast(data.data(), data.data(), data.size(), nccl::kUint8, root, comm, stream),
            "ncclBroadcast");
    }).wait();
  }

  Request start_exchange(const Device& device, const Exchange& exchange) override {
    if (device.gpu == nullptr) return exchange_on_host(exchange);
    return start(device, messages_, [&](nccl::Comm comm, cudaStream_t stream) {
      check(library_.group_start(), "ncclGroupStart");
      if (exchange.from != kNone) {
        check(library_.recv(exchange.in.data(), exchange.in.size(), nccl::kUint8, exchange.from, comm, stream),
              "ncclRecv");
      }
      if (exchange.to != kNone) {
        check(library_.send(exchange.out.data(), exchange.out.size(), nccl::kUint8, exchange.to, comm, stream),
              "ncclSend");
      }
      check(library_.group_end(), "ncclGroupEnd");
    });
  }

 private:
  class Operation final : public Request::Operation {
   public:
    Operation(NcclCommunicator& communicator, cudaStream_t caller) : communicator_(communicator), caller_(caller) {}
    void began_on(cudaStream_t stream) { done_.record(stream); }
    void wait() override { done_.hold_back(caller_); }
    void abandon() noexcept override { communicator_.stop(); }

   private:
    NcclCommunicator& communicator_;
    cudaStream_t caller_;
    GpuEvent done_;
  };

  template <class Call>
  Request start(const Device& device, Channel& channel, const Call& call) {
    require(device.gpu == device_.gpu, "memory of another GPU than the communicator's");
    const cudaStream_t caller = stream_of(device);
    channel.follow(caller);
    call(channel.comm(), channel.stream());
    auto operation = std::make_unique<Operation>(*this, caller);
    operation->began_on(channel.stream());
    return Request(std::move(operation));
  }

  void reduce_on_host(void* data, std::size_t count, DType dtype, Reduction reduction) {
    if (dtype == DType::f32)
      return ranks_->all_reduce(Device{}, std::span(static_cast<float*>(data), count), reduction);
    if (dtype == DType::f64) {
      return ranks_->all_reduce(Device{}, std::span(static_cast<double*>(data), count), reduction);
    }
    ranks_->all_reduce(Device{}, std::span(static_cast<std::int64_t*>(data), count), reduction);
  }

  Request exchange_on_host(const Exchange& exchange) {
    if (exchange.from == kNone) return ranks_->send_async(Device{}, exchange.out, exchange.to);
    if (exchange.to == kNone) return ranks_->recv_async(Device{}, exchange.in, exchange.from);
    ranks_->send_recv(Device{}, exchange.out, exchange.to, exchange.in, exchange.from);
    return {};
  }

  void check(int result, const char* call) {
    if (result == nccl::kSuccess) return;
    abort(fmt::format("{}: {} ({})", call, library_.get_error_string(result), library_.get_last_error(nullptr)));
  }

  // Kernels that wait for other ranks end, so that memory can be freed.
  void stop() noexcept {
    collectives_.stop();
    messages_.stop();
  }

  const nccl::Library& library_ = nccl::library();
  Device device_;
  std::shared_ptr<Communicator> ranks_;
  int exceptions_;
  Channel collectives_, messages_;
};

}  // namespace

bool ranks_share_a_gpu(const Device& device, Communicator& ranks) {
  const GpuId id = id_of(device);
  std::vector<GpuId> ids(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(Device{}, std::as_bytes(std::span(&id, 1)), std::as_writable_bytes(std::span(ids)));
  std::sort(ids.begin(), ids.end());
  return std::adjacent_find(ids.begin(), ids.end()) != ids.end();
}

std::unique_ptr<Communicator> open_nccl(const Device& device, std::shared_ptr<Communicator> ranks) {
  return std::make_unique<NcclCommunicator>(device, std::move(ranks));
}

}  // namespace qdelta
