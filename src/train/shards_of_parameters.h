// How the flat array of parameters is divided over the ranks of a run, each of which updates its own part.
//
//   |  bucket 0                |  bucket 1                | ... | rest |
//   | rank 0 | rank 1 | rank 2 | rank 0 | rank 1 | rank 2 | ... | all  |
//
// A bucket is what is communicated at a time, and is cut into equal shards. The rest, fewer than 16 floats per rank, is
// updated by every rank. A rank's shards, and then the rest, lie side by side in arrays of its own: gradients, m and v.
#pragma once

#include <cstdint>
#include <vector>

namespace qdelta {

struct ParameterBucket {
  std::int64_t begin = 0;      // in the flat array
  std::int64_t shard = 0;      // floats of a rank
  std::int64_t own_begin = 0;  // in the arrays of a rank
};

struct ParameterShards {
  std::int64_t ranks = 1;
  std::vector<ParameterBucket> buckets;  // in the order of the array
  std::int64_t rest_begin = 0, rest = 0, rest_own_begin = 0;
  std::int64_t own = 0;  // floats of a rank's own arrays

  // With buckets of about `bucket_floats`.
  ParameterShards(std::int64_t size, std::int64_t rank_count, std::int64_t bucket_floats);
};

}  // namespace qdelta
