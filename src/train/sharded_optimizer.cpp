#include "train/sharded_optimizer.h"

#include <algorithm>
#include <cmath>

namespace qdelta {
namespace {

// 16 MiB: large enough for the bandwidth, small enough that the first leaves early in the backward.
constexpr std::int64_t kBucketFloats = std::int64_t{4} << 20U;

std::size_t float_bytes(std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); }

template <class T>
std::span<T> part(std::span<T> whole, std::int64_t begin, std::int64_t count) {
  return whole.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

}  // namespace

AdamW averaging(std::span<float> parameters, std::span<float> average, std::span<float> scratch, float decay) {
  AdamW args;
  args.parameters = parameters;
  args.gradients = parameters;
  args.m = average;
  args.v = scratch;
  args.beta1 = decay;
  args.beta2 = 0;
  args.epsilon = 1;  // what is multiplied with the learning rate of 0 must be finite
  args.learning_rate = args.weight_decay = 0;
  return args;
}

ShardedOptimizer::ShardedOptimizer(std::int64_t size, const Device& device, Communicator& communicator, bool average)
    : device_(device),
      communicator_(communicator),
      shards_(size, communicator.size(), kBucketFloats),
      gradients_(device, float_bytes(shards_.own)),
      m_(device, float_bytes(shards_.own)),
      v_(device, float_bytes(shards_.own)),
      average_(device, average ? float_bytes(shards_.own) : 0),
      waiting_(shards_.buckets.size()) {}

std::span<float> ShardedOptimizer::own(DeviceBuffer& buffer, std::int64_t begin, std::int64_t count) {
  return {reinterpret_cast<float*>(buffer.data()) + begin, static_cast<std::size_t>(count)};
}

void ShardedOptimizer::gradients_complete(std::span<const float> gradients, std::int64_t begin) {
  while (waiting_ > 0 && shards_.buckets[waiting_ - 1].begin >= begin) {
    const ParameterBucket& bucket = shards_.buckets[--waiting_];
    under_way_.push_back(communicator_.reduce_scatter_async(device_,
                                                            part(gradients, bucket.begin, bucket.shard * shards_.ranks),
                                                            own(gradients_, bucket.own_begin, bucket.shard)));
  }
}

double ShardedOptimizer::squared_norm(Workspace& workspace) {
  // The rest is the same on every rank: it counts once.
  double sum = sum_of_squares(device_, own(gradients_, 0, shards_.rest_own_begin), workspace);
  communicator_.all_reduce(Device{}, std::span(&sum, 1), Reduction::sum);
  return sum + sum_of_squares(device_, own(gradients_, shards_.rest_own_begin, shards_.rest), workspace);
}

template <class Part>
void ShardedOptimizer::for_shards(Part part) const {
  const std::int64_t rank = communicator_.rank();
  for (const ParameterBucket& bucket : shards_.buckets) {
    part(bucket.begin + rank * bucket.shard, bucket.own_begin, bucket.shard);
  }
  if (shards_.rest > 0) part(shards_.rest_begin, shards_.rest_own_begin, shards_.rest);
}

double ShardedOptimizer::update(const AdamW& args, std::span<const float> gradients, float max_norm,
                                Workspace& workspace) {
  require(waiting_ == 0, "an update before all gradients are complete");
  if (shards_.rest > 0) {
    const std::span<float> rest = own(gradients_, shards_.rest_own_begin, shards_.rest);
    copy_on_device(device_, rest.data(), gradients.data() + shards_.rest_begin, rest.size_bytes());
    communicator_.all_reduce(device_, rest, Reduction::sum);
  }
  for (Request& request : under_way_) request.wait();
  under_way_.clear();
  waiting_ = shards_.buckets.size();

  const double norm = std::sqrt(squared_norm(workspace));
  if (!std::isfinite(norm)) return norm;
  AdamW one = args;
  // As in clipped_adamw.
  if (max_norm > 0) one.gradient_scale *= static_cast<float>(std::min(1.0, double{max_norm} / (norm + 1e-6)));
  const auto update_part = [&](std::int64_t at, std::int64_t own_begin, std::int64_t count) {
    one.parameters = part(args.parameters, at, count);
    if (!args.rounded.empty()) one.rounded = part(args.rounded, at, count);
    if (!args.decays.empty()) {
      one.decays = part(args.decays, at / AdamW::kDecayGroup, ceil_div(count, AdamW::kDecayGroup));
    }
    one.gradients = own(gradients_, own_begin, count);
    one.m = own(m_, own_begin, count);
    one.v = own(v_, own_begin, count);
    adamw(device_, one);
  };
  for_shards(update_part);
  all_gather(std::as_writable_bytes(args.parameters), sizeof(float));
  if (!args.rounded.empty()) all_gather(std::as_writable_bytes(args.rounded), sizeof(BFloat16));
  return norm;
}

void ShardedOptimizer::update_average(std::span<float> parameters, float decay) {
  clear(device_, gradients_.data(), gradients_.size());
  for_shards([&](std::int64_t at, std::int64_t own_begin, std::int64_t count) {
    adamw(device_, averaging(part(parameters, at, count), own(average_, own_begin, count),
                             own(gradients_, own_begin, count), decay));
  });
}

void ShardedOptimizer::all_gather(std::span<std::byte> whole, std::size_t element_bytes) {
  std::vector<Request> requests;
  for (const ParameterBucket& bucket : shards_.buckets) {
    const std::size_t shard = static_cast<std::size_t>(bucket.shard) * element_bytes;
    const std::span<std::byte> data = whole.subspan(static_cast<std::size_t>(bucket.begin) * element_bytes,
                                                    shard * static_cast<std::size_t>(shards_.ranks));
    const std::size_t at = static_cast<std::size_t>(communicator_.rank()) * shard;
    requests.push_back(communicator_.all_gather_async(device_, data.subspan(at, shard), data));
  }
  for (Request& request : requests) request.wait();
}

void ShardedOptimizer::gather(std::span<float> m, std::span<float> v, std::span<float> average) {
  gather_one(m_, m);
  gather_one(v_, v);
  if (average_.size() > 0) gather_one(average_, average);
}

void ShardedOptimizer::scatter(std::span<const float> m, std::span<const float> v, std::span<const float> average) {
  scatter_one(m_, m);
  scatter_one(v_, v);
  if (average_.size() > 0) scatter_one(average_, average);
}

void ShardedOptimizer::gather_one(DeviceBuffer& own_values, std::span<float> whole) {
  std::vector<float> shard;
  std::vector<float> data;
  for (const ParameterBucket& bucket : shards_.buckets) {
    shard.resize(static_cast<std::size_t>(bucket.shard));
    data.resize(shard.size() * static_cast<std::size_t>(shards_.ranks));
    download(device_, shard.data(), own(own_values, bucket.own_begin, bucket.shard).data(), float_bytes(bucket.shard));
    communicator_.all_gather(Device{}, std::as_bytes(std::span(shard)), std::as_writable_bytes(std::span(data)));
    if (!whole.empty()) std::copy(data.begin(), data.end(), whole.begin() + bucket.begin);
  }
  if (whole.empty()) return;
  download(device_, whole.data() + shards_.rest_begin, own(own_values, shards_.rest_own_begin, shards_.rest).data(),
           float_bytes(shards_.rest));
}

void ShardedOptimizer::scatter_one(DeviceBuffer& own_values, std::span<const float> whole) {
  std::vector<float> data;
  const auto receive = [&](std::int64_t begin, std::int64_t count) {
    data.resize(static_cast<std::size_t>(count));
    if (!whole.empty()) std::copy_n(whole.begin() + begin, count, data.begin());
    communicator_.broadcast(Device{}, std::as_writable_bytes(std::span(data)), 0);
  };
  for (const ParameterBucket& bucket : shards_.buckets) {
    receive(bucket.begin, bucket.shard * shards_.ranks);
    upload(device_, own(own_values, bucket.own_begin, bucket.shard).data(),
           data.data() + communicator_.rank() * bucket.shard, float_bytes(bucket.shard));
    synchronize(device_);  // `data` is written again
  }
  receive(shards_.rest_begin, shards_.rest);
  upload(device_, own(own_values, shards_.rest_own_begin, shards_.rest).data(), data.data(), float_bytes(shards_.rest));
  synchronize(device_);
}

}  // namespace qdelta
