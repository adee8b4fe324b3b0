// AdamW over the ranks of a run: gradients are summed in buckets while the backward still runs (reduce-scatter), each
// rank updates its shards of the parameters, and all get the new ones (all-gather). Moments exist once over all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/memory.h"
#include "distributed/communicator.h"
#include "kernels/layers.h"
#include "train/shards_of_parameters.h"

namespace qdelta {

// The update of a moving average by an op that is there: the first moment of AdamW, with the parameters as gradients
// and no learning rate, which leaves them as they are. `scratch` must be zero, and as long as they are.
[[nodiscard]] AdamW averaging(std::span<float> parameters, std::span<float> average, std::span<float> scratch,
                              float decay);

class ShardedOptimizer {
 public:
  // `size`: of the flat array. `average`: whether one of the parameters is kept.
  ShardedOptimizer(std::int64_t size, const Device& device, Communicator& communicator, bool average);

  // Gradients are complete from `begin` to the end of the array: the buckets there start on their way. Every rank calls
  // it at the same places, at last with 0. The gradients stay where they are until update().
  void gradients_complete(std::span<const float> gradients, std::int64_t begin);

  // The whole arrays that an update changes, and what it does; m, v, gradients and scale are the optimizer's business.
  // With the gradients clipped to a norm of max_norm, all together (0: as they are), and left out where one is not
  // finite. Gives their norm, the same on every rank.
  [[nodiscard]] double update(const AdamW& args, std::span<const float> gradients, float max_norm,
                              Workspace& workspace);

  // Of this rank's shards; parameters: the whole array. After update(), whose gradients are overwritten.
  void update_average(std::span<float> parameters, float decay);

  // Collective, on host memory. gather: the whole m, v and average to rank 0, empty spans elsewhere. scatter: from
  // there.
  void gather(std::span<float> m, std::span<float> v, std::span<float> average);
  void scatter(std::span<const float> m, std::span<const float> v, std::span<const float> average);

  [[nodiscard]] const ParameterShards& shards() const { return shards_; }
  // The part of `whole` that this rank updates, in the order of its own arrays; and back, all-gathered.
  void all_gather(std::span<std::byte> whole, std::size_t element_bytes);

 private:
  [[nodiscard]] static std::span<float> own(DeviceBuffer& buffer, std::int64_t begin, std::int64_t count);
  // Calls part(begin in the whole array, begin in the arrays of this rank, count) for each of its shards.
  template <class Part>
  void for_shards(Part part) const;
  void gather_one(DeviceBuffer& own_values, std::span<float> whole);
  void scatter_one(DeviceBuffer& own_values, std::span<const float> whole);
  [[nodiscard]] double squared_norm(Workspace& workspace);

  Device device_;
  Communicator& communicator_;
  ParameterShards shards_;
  DeviceBuffer gradients_, m_, v_, average_;  // of this rank; the last is empty where there is none
  std::vector<Request> under_way_;
  std::size_t waiting_;  // buckets whose gradients are not complete: the first ones
};

}  // namespace qdelta
