// The words seen last and their ids: one place for each, where a newcomer drives out the old. A place is a cache line;
// longer words and words of more tokens are not kept. Each thread has its own, for the tokenizer it used last.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace qdelta {

class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 24;  // bytes
  static constexpr std::size_t kMostIds = 9;

  // A number for a tokenizer, never used again.
  static std::uint64_t new_owner() {
    static std::atomic<std::uint64_t> made{0};
    return ++made;
  }
  static WordCache& of_this_thread(std::uint64_t owner) {
    thread_local WordCache mine;
    if (mine.owner_ != owner) {
      mine.places_.assign(kPlaces, Place{});
      mine.owner_ = owner;
    }
    return mine;
  }

  // Appends the ids of a word that is neither empty nor longer than kLongestWord: those kept, else what append()
  // appends.
  template <class Append>
  void encode(std::string_view word, std::vector<std::int32_t>& ids, const Append& append) {
    Bytes bytes{};
    std::memcpy(bytes.data(), word.data(), word.size());
    Place& place = places_[place_of(bytes, word.size())];
    if (place.length == word.size() && place.bytes == bytes) {
      ids.insert(ids.end(), place.ids.begin(), place.ids.begin() + place.count);
      return;
    }
    const std::size_t before = ids.size();
    append();
    const std::size_t count = ids.size() - before;
    if (count > kMostIds) return;
    place.bytes = bytes;
    place.length = static_cast<std::uint8_t>(word.size());
    place.count = static_cast<std::uint8_t>(count);
    std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(before), count, place.ids.begin());
  }

 private:
  static constexpr std::size_t kPlaces = std::size_t{1} << 15U;

  using Bytes = std::array<std::uint64_t, kLongestWord / 8>;
  struct Place {
    Bytes bytes;
    std::uint8_t length;  // 0: empty
    std::uint8_t count;
    std::array<std::int32_t, kMostIds> ids;
  };
  static_assert(sizeof(Place) == 64);

  static std::size_t place_of(const Bytes& bytes, std::size_t length) noexcept {
    std::uint64_t hash = length;
    for (const std::uint64_t part : bytes) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 32U;
    }
    return hash % kPlaces;
  }

  std::uint64_t owner_ = 0;
  std::vector<Place> places_;
};

}  // namespace qdelta
