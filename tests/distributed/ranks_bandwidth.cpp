#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "distributed/ranks.h"
#include "distributed/ranks_modes.h"

namespace qdelta::testing {
namespace {

// Seconds of the fastest of several calls.
template <class Action>
double fastest(const Action& action) {
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    communicator().barrier();
    const auto start = std::chrono::steady_clock::now();
    action();
    synchronize(ranks.device);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

int measure_bandwidth() {
  for (const std::size_t mebibytes : {std::size_t{1}, std::size_t{64}}) {
    const std::size_t bytes = (mebibytes << 20U) / rank_count() / 4 * 4 * rank_count();
    OnDevice<float> data(bytes / 4);
    OnDevice<float> shard(bytes / 4 / rank_count());
    OnDevice<float> copy(bytes / 4);
    const Device& device = ranks.device;
    const auto gigabytes = [bytes](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
    const double memory =
        gigabytes(fastest([&] { copy_on_device(device, copy.span().data(), data.span().data(), bytes); }));
    const double reduce = gigabytes(fastest([&] { communicator().reduce_scatter(device, data.span(), shard.span()); }));
    const double gather = gigabytes(fastest(
        [&] { communicator().all_gather(device, std::as_bytes(shard.span()), std::as_writable_bytes(data.span())); }));
    if (own_rank() != 0) continue;
    fmt::print("{:3} MiB: memcpy {:.2f} GB/s; reduce_scatter {:.2f} GB/s ({:.2f}); all_gather {:.2f} GB/s ({:.2f})\n",
               mebibytes, memory, reduce, reduce / memory, gather, gather / memory);
  }
  return 0;
}

}  // namespace qdelta::testing
