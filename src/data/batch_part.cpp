#include "data/batch_part.h"

#include <algorithm>

#include "core/error.h"

namespace qdelta {

BatchPart part_of(const TokenBatch& whole, std::int64_t index, std::int64_t count) {
  const auto tokens = static_cast<std::int64_t>(whole.ids.size());
  require(count > 0 && index >= 0 && index < count, "there is no part {} of {}", index, count);
  require(tokens >= count, "a batch of {} tokens cannot be cut into {} parts", tokens, count);
  const std::int64_t begin = tokens * index / count;
  const std::int64_t end = tokens * (index + 1) / count;
  const auto starts_at = [&](std::int64_t token) { return std::ranges::binary_search(whole.offsets, token); };

  BatchPart part;
  part.enters = !starts_at(begin);
  part.leaves = !starts_at(end);
  TokenBatch& batch = part.batch;
  batch.ids.assign(whole.ids.begin() + begin, whole.ids.begin() + end);
  batch.targets.assign(whole.targets.begin() + begin, whole.targets.begin() + end);
  batch.loss_tokens = std::ranges::count_if(batch.targets, [](std::int32_t target) { return target >= 0; });
  batch.offsets.push_back(0);
  for (const std::int64_t offset : whole.offsets) {
    if (offset > begin && offset < end) batch.offsets.push_back(offset - begin);
  }
  batch.offsets.push_back(end - begin);
  return part;
}

}  // namespace qdelta
