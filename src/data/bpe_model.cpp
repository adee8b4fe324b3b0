#include "data/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

#include "core/error.h"
#include "data/byte_alphabet.h"
#include "data/unicode.h"
#include "data/word_cache.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
constexpr std::size_t kShortWord = 48;
constexpr std::string_view kMetaspace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

constexpr std::uint64_t pair_of(std::int32_t left, std::int32_t right) noexcept {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U | static_cast<std::uint32_t>(right);
}
constexpr std::uint64_t scramble(std::uint64_t x) noexcept {
  x *= 0x9e3779b97f4a7c15U;
  return x ^ (x >> 32U);
}

}  // namespace

BpeModel::BpeModel(BpeConfig config)
    : TokenModel(std::move(config.vocabulary)),
      continuing_prefix_(std::move(config.continuing_prefix)),
      end_suffix_(std::move(config.end_suffix)),
      takes_bytes_(config.takes_bytes),
      byte_fallback_(config.byte_fallback),
      fuse_unknown_(config.fuse_unknown),
      ignore_merges_(config.ignore_merges),
      cache_owner_(WordCache::new_owner()) {
  require(!takes_bytes_ || !has_affixes(), "bytes have neither a prefix nor a suffix");
  if (config.unknown) {
    const auto found = vocabulary().id_of(*config.unknown);
    if (!found) fail(Status::corrupt, "the unknown token {} is not in the vocabulary", shown(*config.unknown));
    unknown_ = *found;
  }
  read_merges(config);
  find_byte_tokens();
}

void BpeModel::read_merges(const BpeConfig& config) {
  merge_mask_ = std::bit_ceil(2 * config.merges.size() + 2) - 1;
  merges_.assign(merge_mask_ + 1, {kNoPair, 0, 0});
  bool crosses = false;
  for (std::size_t rank = 0; rank < config.merges.size(); ++rank) {
    const std::string& left = config.merges[rank].first;
    const std::string& right = config.merges[rank].second;
    const auto find = [&](const std::string& token) {
      const auto id = vocabulary().id_of(token);
      if (!id) {
        fail(Status::corrupt, "merge {} joins {} and {}, but {} is not in the vocabulary", rank, shown(left),
             shown(right), shown(token));
      }
      return *id;
    };
    if (right.size() < continuing_prefix_.size()) {
      fail(Status::corrupt, "merge {} joins {} and {}, which is shorter than the prefix {}", rank, shown(left),
           shown(right), shown(continuing_prefix_));
    }
    const std::int32_t left_id = find(left);
    const std::int32_t right_id = find(right);
    put(pair_of(left_id, right_id), config.ranks.empty() ? static_cast<std::int32_t>(rank) : config.ranks[rank],
        find(left + right.substr(continuing_prefix_.size())));
    crosses = crosses || (right.starts_with(kMetaspace) && !left.ends_with(kMetaspace));
  }
  // Then a long text, which such models take as one word, can be cut where a U+2581 follows another character.
  splits_at_metaspace_ =
      !takes_bytes_ && !ignore_merges_ && !crosses && !has_affixes() && vocabulary().id_of(kMetaspace).has_value();
}

void BpeModel::find_byte_tokens() {
  const ByteAlphabet& alphabet = ByteAlphabet::get();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string character;
    unicode::append(character, alphabet.code(static_cast<unsigned char>(byte)));
    byte_symbols_[byte] = vocabulary().id_of(character).value_or(-1);
    byte_tokens_[byte] = vocabulary().id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  if (!takes_bytes_ || !ignore_merges_) return;
  words_.reserve(vocabulary().count());
  for (const auto& [token, id] : vocabulary().index()) {
    if (auto bytes = alphabet.decode(token)) words_.emplace(std::move(*bytes), id);
  }
}

void BpeModel::put(std::uint64_t pair, std::int32_t rank, std::int32_t id) {
  std::uint64_t at = scramble(pair) & merge_mask_;
  while (merges_[at].pair != kNoPair && merges_[at].pair != pair) at = (at + 1) & merge_mask_;
  merges_[at] = {pair, rank, id};  // where a pair is listed twice, the last one holds
}

const BpeModel::Merge* BpeModel::merge_of(std::int32_t left, std::int32_t right) const noexcept {
  const std::uint64_t pair = pair_of(left, right);
  std::uint64_t at = scramble(pair) & merge_mask_;
  while (merges_[at].pair != pair) {
    if (merges_[at].pair == kNoPair) return nullptr;
    at = (at + 1) & merge_mask_;
  }
  return &merges_[at];
}

void BpeModel::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  while (splits_at_metaspace_ && word.size() > WordCache::kLongestWord) {
    // The first U+2581 after another character.
    std::size_t cut = word.find(kMetaspace);
    while (cut != std::string_view::npos && (cut == 0 || word.substr(0, cut).ends_with(kMetaspace))) {
      cut = word.find(kMetaspace, cut + kMetaspace.size());
    }
    if (cut == std::string_view::npos) break;
    encode_cached(word.substr(0, cut), ids);
    word.remove_prefix(cut);
  }
  encode_cached(word, ids);
}

void BpeModel::encode_cached(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (word.size() > WordCache::kLongestWord) return encode_whole(word, ids);
  WordCache::of_this_thread(cache_owner_).encode(word, ids, [&] { encode_whole(word, ids); });
}

void BpeModel::encode_whole(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    std::optional<std::int32_t> whole;
    if (takes_bytes_) {
      const auto found = words_.find(std::string(word));
      if (found != words_.end()) whole = found->second;
    } else {
      whole = vocabulary().id_of(word);
    }
    if (whole) return ids.push_back(*whole);
  }
  thread_local std::vector<std::int32_t> symbols;
  symbols.clear();
  start(word, symbols);
  if (symbols.size() <= kShortWord) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (symbols.capacity() > (std::size_t{1} << 20U)) symbols = {};  // do not keep the memory of one huge word
}

void BpeModel::start(std::string_view word, std::vector<std::int32_t>& symbols) const {
  bool unknown_waits = false;  // a run of unknown characters is open
  const auto add = [&](std::string_view character, std::int32_t id) {
    if (id >= 0) {
      if (unknown_waits) symbols.push_back(unknown_);
      unknown_waits = false;
      symbols.push_back(id);
      return;
    }
    if (byte_fallback_) {
      const auto token_of = [this](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
      if (std::all_of(character.begin(), character.end(), [&](char c) { return token_of(c) >= 0; })) {
        // Before a run of unknown characters that is still open: the reference library's order.
        for (const char c : character) symbols.push_back(token_of(c));
        return;
      }
    }
    if (unknown_ < 0) return;
    if (unknown_waits && !fuse_unknown_) symbols.push_back(unknown_);
    unknown_waits = true;
  };
  if (takes_bytes_) {
    for (const char c : word) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte_symbols_[byte] >= 0) {
        add({}, byte_symbols_[byte]);
      } else {
        std::string character;
        unicode::append(character, ByteAlphabet::get().code(byte));
        add(character, -1);
      }
    }
  } else {
    std::string affixed;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t end = at + unicode::character_at(word.data() + at).length;
      std::string_view character = word.substr(at, end - at);
      if (has_affixes()) {
        affixed.assign(at > 0 ? continuing_prefix_ : "").append(character);
        if (end == word.size()) affixed += end_suffix_;
        character = affixed;
      }
      add(character, vocabulary().id_of(character).value_or(-1));
      at = end;
    }
  }
  if (unknown_waits) symbols.push_back(unknown_);
}

void BpeModel::merge_short(std::vector<std::int32_t>& symbols) const {
  constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
  std::array<std::int32_t, kShortWord> ranks{};  // of the pair that starts here
  std::array<std::int32_t, kShortWord> joined{};
  std::size_t count = symbols.size();
  if (count < 2) return;
  const auto look_up = [&](std::size_t at) {
    const Merge* merge = merge_of(symbols[at], symbols[at + 1]);
    ranks[at] = merge != nullptr ? merge->rank : kNone;
    joined[at] = merge != nullptr ? merge->id : -1;
  };
  for (std::size_t at = 0; at + 1 < count; ++at) look_up(at);
  while (count > 1) {
    const auto* end = ranks.begin() + (count - 1);
    const auto at = static_cast<std::size_t>(std::min_element(ranks.cbegin(), end) - ranks.cbegin());
    if (ranks[at] == kNone) break;
    symbols[at] = joined[at];
    --count;
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(count) + 1,
              symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    if (at + 1 < count) {
      std::copy(ranks.begin() + at + 2, ranks.begin() + count, ranks.begin() + at + 1);
      std::copy(joined.begin() + at + 2, joined.begin() + count, joined.begin() + at + 1);
      look_up(at);
    }
    if (at > 0) look_up(at - 1);
  }
  symbols.resize(count);
}

void BpeModel::merge_long(std::vector<std::int32_t>& symbols) const {
  require(symbols.size() < static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
          "a word of {} characters is too long", symbols.size());
  struct Symbol {
    std::int32_t id;  // -1: joined to the one before
    std::int32_t previous;
    std::int32_t next;
  };
  struct Candidate {
    std::int32_t rank;
    std::int32_t at;
    std::int32_t id;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const auto count = static_cast<std::int32_t>(symbols.size());
  std::vector<Symbol> chain(symbols.size());
  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  std::priority_queue queue(std::greater<Candidate>{}, std::move(storage));
  const auto symbol = [&](std::int32_t at) -> Symbol& { return chain[static_cast<std::size_t>(at)]; };
  const auto propose = [&](std::int32_t at, std::int32_t next) {
    const Merge* merge = merge_of(symbol(at).id, symbol(next).id);
    if (merge != nullptr) queue.push({merge->rank, at, merge->id});
  };
  for (std::int32_t at = 0; at < count; ++at) {
    symbol(at) = {symbols[static_cast<std::size_t>(at)], at - 1, at + 1 < count ? at + 1 : -1};
  }
  for (std::int32_t at = 0; at + 1 < count; ++at) propose(at, at + 1);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.at);
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    // One of the two may have been joined to something else since.
    const Merge* merge = merge_of(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;
    left.id = best.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    if (left.previous >= 0) propose(left.previous, best.at);
    if (left.next >= 0) propose(best.at, left.next);
  }
  symbols.clear();
  for (const Symbol& s : chain) {
    if (s.id >= 0) symbols.push_back(s.id);
  }
}

}  // namespace qdelta
