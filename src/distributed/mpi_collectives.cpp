#include "distributed/mpi_collectives.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace qdelta::mpi {
namespace {

constexpr std::size_t kScratch = std::size_t{32} << 20;
constexpr std::size_t kSlots = 4;  // pieces under way at once: a rank that is late for one does not hold up the next
constexpr std::size_t kLongestPiece = std::size_t{1} << 20;
constexpr std::size_t kShortestPiece = std::size_t{4} << 10;
constexpr std::size_t kSmall = std::size_t{16} << 10;  // bytes that an all_reduce sends to all ranks at once

// The part of a buffer that belongs to a rank.
struct Part {
  std::size_t begin = 0, count = 0;

  // Its elements from `at`, no more than `length` of them.
  [[nodiscard]] Part piece(std::size_t at, std::size_t length) const {
    const std::size_t skipped = std::min(at, count);
    return {begin + skipped, std::min(length, count - skipped)};
  }
};

std::vector<Part> parts_of(std::size_t count, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<Part> parts(n);
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < n; ++rank) {
    parts[rank] = {begin, count / n + (rank < count % n ? 1 : 0)};
    begin += parts[rank].count;
  }
  return parts;
}

// The other ranks, each rank beginning with another so that they do not all turn to the same one.
template <class Action>
void for_each_other(const Engine& engine, const Action& action) {
  for (int step = 1; step < engine.size(); ++step) action((engine.rank() + step) % engine.size());
}

template <class T>
std::span<const std::byte> bytes_of(const T* data, const Part& part) {
  return std::as_bytes(std::span(data + part.begin, part.count));
}
template <class T>
std::span<std::byte> writable_bytes_of(T* data, const Part& part) {
  return std::as_writable_bytes(std::span(data + part.begin, part.count));
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {  // wraps around, as everywhere else, without being undefined
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
    } else {
      return a + b;
    }
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return b > a || b != b ? b : a;  // NOLINT(misc-redundant-expression): NaN
  }
};

// to[i] = sources[0][i] + sources[1][i] + ..., in this order; `to` may be one of the sources.
template <class T, class Op>
void combine(std::span<const T* const> sources, T* to, std::size_t count, Op op) {
  constexpr std::size_t kBlock = 2048;
  std::array<T, kBlock> block{};
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t length = std::min(kBlock, count - at);
    std::copy_n(sources[0] + at, length, block.data());
    for (const T* source : sources.subspan(1)) {
      for (std::size_t i = 0; i < length; ++i) block[i] = op(block[i], source[at + i]);
    }
    std::copy_n(block.data(), length, to + at);
  }
}

// to = this rank's part of `data`, summed over the ranks. Piece by piece: while one is summed others are on their way.
template <class T, class Op>
void reduce_parts(Engine& engine, const T* data, const std::vector<Part>& parts, T* to, Op op) {
  const auto rank = static_cast<std::size_t>(engine.rank());
  const std::size_t ranks = parts.size();
  std::size_t longest = 0;
  for (const Part& part : parts) longest = std::max(longest, part.count);
  const std::size_t length =
      std::min(longest, std::clamp(kScratch / (kSlots * ranks), kShortestPiece, kLongestPiece) / sizeof(T));
  const std::size_t pieces = (longest + length - 1) / length;

  // Of other ranks: their pieces of this rank's part, a slot for each piece that is under way.
  T* const scratch = reinterpret_cast<T*>(engine.scratch(kSlots * (ranks - 1) * length * sizeof(T)).data());
  const auto piece_of = [&](std::size_t other, std::size_t index) {
    return scratch + (index % kSlots * (ranks - 1) + other - (other > rank ? 1 : 0)) * length;
  };
  std::array<Engine::Requests, kSlots> under_way;
  const auto start = [&](std::size_t index) {
    Engine::Requests& requests = under_way[index % kSlots];
    const Part mine{0, parts[rank].piece(index * length, length).count};
    for_each_other(engine, [&](int other) {
      engine.start_recv(writable_bytes_of(piece_of(static_cast<std::size_t>(other), index), mine), other, requests);
    });
    for_each_other(engine, [&](int other) {
      const Part theirs = parts[static_cast<std::size_t>(other)].piece(index * length, length);
      engine.start_send(bytes_of(data, theirs), other, requests);
    });
  };

  std::vector<const T*> sources(ranks);
  for (std::size_t started = 0, index = 0; index < pieces; ++index) {
    for (; started < std::min(pieces, index + kSlots); ++started) start(started);
    engine.finish(under_way[index % kSlots]);
    const Part mine = parts[rank].piece(index * length, length);
    for (std::size_t r = 0; r < ranks; ++r) sources[r] = r == rank ? data + mine.begin : piece_of(r, index);
    combine<T>(sources, to + (mine.begin - parts[rank].begin), mine.count, op);
  }
}

// Every rank's part of `data` to every other.
template <class T>
void gather_parts(Engine& engine, T* data, const std::vector<Part>& parts) {
  Engine::Requests requests;
  for_each_other(engine, [&](int other) {
    engine.start_recv(writable_bytes_of(data, parts[static_cast<std::size_t>(other)]), other, requests);
  });
  const std::span<const std::byte> mine = bytes_of(data, parts[static_cast<std::size_t>(engine.rank())]);
  for_each_other(engine, [&](int other) { engine.start_send(mine, other, requests); });
  engine.finish(requests);
}

template <class T, class Op>
void all_reduce_as(Engine& engine, T* data, std::size_t count, Op op) {
  const auto rank = static_cast<std::size_t>(engine.rank());
  const auto ranks = static_cast<std::size_t>(engine.size());
  if (count * sizeof(T) > kSmall) {
    const std::vector<Part> parts = parts_of(count, engine.size());
    reduce_parts(engine, data, parts, data + parts[rank].begin, op);
    gather_parts(engine, data, parts);
    return;
  }
  // One round of messages instead of two.
  std::vector<T> all(ranks * count);
  std::copy_n(data, count, all.data() + rank * count);
  gather_parts(engine, all.data(), parts_of(all.size(), engine.size()));
  std::vector<const T*> sources(ranks);
  for (std::size_t r = 0; r < ranks; ++r) sources[r] = all.data() + r * count;
  combine<T>(sources, data, count, op);
}

template <class T>
void all_reduce_as(Engine& engine, void* data, std::size_t count, Reduction reduction) {
  T* const numbers = static_cast<T*>(data);
  if (reduction == Reduction::sum) return all_reduce_as(engine, numbers, count, Sum());
  all_reduce_as(engine, numbers, count, Max());
}

}  // namespace

void reduce_scatter(Engine& engine, std::span<const float> data, std::span<float> shard) {
  reduce_parts(engine, data.data(), parts_of(data.size(), engine.size()), shard.data(), Sum());
}

void all_gather(Engine& engine, std::span<const std::byte> shard, std::span<std::byte> data) {
  const std::vector<Part> parts = parts_of(data.size(), engine.size());
  std::byte* const own = data.data() + parts[static_cast<std::size_t>(engine.rank())].begin;
  if (own != shard.data()) std::memcpy(own, shard.data(), shard.size());
  gather_parts(engine, data.data(), parts);
}

void all_reduce(Engine& engine, void* data, std::size_t count, DType dtype, Reduction reduction) {
  if (dtype == DType::f32) return all_reduce_as<float>(engine, data, count, reduction);
  if (dtype == DType::f64) return all_reduce_as<double>(engine, data, count, reduction);
  if (dtype == DType::i64) return all_reduce_as<std::int64_t>(engine, data, count, reduction);
  fail(Status::internal, "all_reduce of {}", name_of(dtype));
}

}  // namespace qdelta::mpi
