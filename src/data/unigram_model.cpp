#include "data/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "data/unicode.h"
#include "data/word_cache.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr double kUnknownPenalty = 10;

double lowest(const std::vector<double>& scores) {
  double least = std::numeric_limits<double>::infinity();
  for (const double score : scores) least = std::min(least, score);
  return least;
}

// The nearest double, which std::pow does not promise.
double power_of_ten(int exponent) {
  const std::string text = fmt::format("1e{}", exponent);
  double power = 0;
  std::from_chars(text.data(), text.data() + text.size(), power);
  return power;
}

}  // namespace

double twice_rounded(double number) {
  // The shortest digits that stand for it, which is what every writer of such files puts there: 1.2345e-06.
  std::array<char, 32> shortest{};
  const auto end = std::to_chars(shortest.data(), shortest.data() + shortest.size(), std::abs(number),
                                 std::chars_format::scientific);
  std::uint64_t digits = 0;
  int exponent = 0;
  const char* at = shortest.data();
  bool fraction = false;
  for (; at != end.ptr && *at != 'e'; ++at) {
    if (*at == '.') {
      fraction = true;
      continue;
    }
    digits = 10 * digits + static_cast<std::uint64_t>(*at - '0');
    if (fraction) --exponent;
  }
  int scale = 0;
  if (at != end.ptr) std::from_chars(at[1] == '+' ? at + 2 : at + 1, end.ptr, scale);
  exponent += scale;
  auto result = static_cast<double>(digits);
  for (; exponent < -308; exponent += 308) result /= 1e308;
  result = exponent < 0 ? result / power_of_ten(-exponent) : result * power_of_ten(exponent);
  return std::signbit(number) ? -result : result;
}

UnigramModel::UnigramModel(UnigramConfig config)
    : TokenModel(std::move(config.tokens)),
      scores_(std::move(config.scores)),
      unknown_(config.unknown),
      byte_fallback_(config.byte_fallback),
      unknown_score_(lowest(scores_) - kUnknownPenalty),
      cache_owner_(WordCache::new_owner()) {
  require(scores_.size() == vocabulary().count(), "{} scores for {} tokens", scores_.size(), vocabulary().count());
  if (unknown_ && vocabulary().token(*unknown_) == nullptr) {
    fail(Status::corrupt, "the unknown token has the id {}, but the vocabulary has {} tokens", *unknown_,
         vocabulary().count());
  }
  for (const auto& [token, id] : vocabulary().index()) trie_.add(token, id);
}

void UnigramModel::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (word.size() > WordCache::kLongestWord) return encode_whole(word, ids);
  WordCache::of_this_thread(cache_owner_).encode(word, ids, [&] { encode_whole(word, ids); });
}

void UnigramModel::search(std::string_view word, std::vector<Step>& steps) const {
  steps.assign(word.size() + 1, Step{});
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t character = unicode::character_at(word.data() + begin).length;
    const double so_far = steps[begin].score;
    const auto propose = [&](std::size_t length, double score) {
      Step& step = steps[begin + length];
      if (step.length != 0 && !(score > step.score)) return false;
      step.score = score;
      step.length = static_cast<std::uint32_t>(length);
      return true;
    };
    bool covered = false;  // by a token that is this character
    std::int32_t node = ByteTrie::kRoot;
    for (std::size_t at = begin; at < word.size(); ++at) {
      node = trie_.child(node, static_cast<unsigned char>(word[at]));
      if (node == ByteTrie::kNone) break;
      const std::int32_t id = trie_.value(node);
      if (id == ByteTrie::kNone) continue;
      const std::size_t length = at + 1 - begin;
      if (propose(length, scores_[static_cast<std::size_t>(id)] + so_far)) steps[begin + length].id = id;
      covered = covered || length == character;
    }
    if (!covered && propose(character, unknown_score_ + so_far)) {
      if (!unknown_) {
        fail(Status::unsupported, "{} is in no token, and the vocabulary has no unknown token",
             shown(word.substr(begin, character)));
      }
      steps[begin + character].id = *unknown_;
    }
    begin += character;
  }
}

void UnigramModel::encode_whole(std::string_view word, std::vector<std::int32_t>& ids) const {
  require(word.size() < std::numeric_limits<std::uint32_t>::max(), "a word of {} bytes is too long", word.size());
  std::vector<Step> steps;
  search(word, steps);
  // From the end to the start, so the order of the pieces is turned round.
  struct Part {
    std::size_t begin;
    std::size_t end;
    std::int32_t id;
  };
  std::vector<Part> parts;
  for (std::size_t end = word.size(); end > 0;) {
    const Step& step = steps[end];
    const std::size_t begin = end - step.length;
    const bool is_unknown = unknown_ && step.id == *unknown_;
    if (is_unknown && !parts.empty() && parts.back().id == *unknown_) {
      parts.back().begin = begin;
    } else {
      parts.push_back({begin, end, step.id});
    }
    end = begin;
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (unknown_ && part->id == *unknown_) {
      append_unknown(word.substr(part->begin, part->end - part->begin), ids);
    } else {
      ids.push_back(part->id);
    }
  }
}

void UnigramModel::append_unknown(std::string_view text, std::vector<std::int32_t>& ids) const {
  // What was joined may be a token after all.
  if (const auto id = vocabulary().id_of(text)) return ids.push_back(*id);
  if (byte_fallback_) {
    const std::size_t before = ids.size();
    for (const char c : text) {
      const auto id = vocabulary().id_of(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)));
      if (!id) break;
      ids.push_back(*id);
    }
    if (ids.size() - before == text.size()) return;
    ids.resize(before);
  }
  ids.push_back(*unknown_);
}

}  // namespace qdelta
