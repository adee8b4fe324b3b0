#include "train/shards_of_parameters.h"

#include <algorithm>

#include "core/error.h"
#include "core/memory.h"

namespace qdelta {

namespace {
constexpr std::int64_t kAligned = 16;  // floats: a cache line, and a group of weights that decay or not
}

ParameterShards::ParameterShards(std::int64_t size, std::int64_t rank_count, std::int64_t bucket_floats)
    : ranks(rank_count) {
  require(rank_count >= 1 && bucket_floats >= 1, "{} ranks and buckets of {}", rank_count, bucket_floats);
  const std::int64_t unit = kAligned * rank_count;
  const std::int64_t bucket = round_up(bucket_floats, unit);
  rest_begin = size / unit * unit;
  rest = size - rest_begin;
  for (std::int64_t begin = 0; begin < rest_begin; begin += bucket) {
    const std::int64_t shard = std::min(bucket, rest_begin - begin) / rank_count;
    buckets.push_back({begin, shard, own});
    own += shard;
  }
  rest_own_begin = own;
  own += rest;
}

}  // namespace qdelta
