#include "data/precompiled_map.h"

#include "core/error.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t waiting = 0;
  unsigned bits = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) fail(Status::corrupt, "the map of characters is not base64");
    waiting = (waiting << 6U) | static_cast<std::uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>((waiting >> bits) & 0xffU);
  }
  return bytes;
}

std::uint32_t number_at(std::string_view bytes, std::size_t at) {
  std::uint32_t number = 0;
  for (std::size_t i = 4; i > 0; --i) number = (number << 8U) | static_cast<unsigned char>(bytes[at + i - 1]);
  return number;
}

// The fields of a unit: where its children are, the byte that leads to it, whether a text ends there, and, of the unit
// that it then points to, the value.
std::size_t offset_of(std::uint32_t unit) { return std::size_t{unit >> 10U} << ((unit & (1U << 9U)) >> 6U); }
std::uint32_t label_of(std::uint32_t unit) { return unit & ((1U << 31U) | 0xffU); }
bool has_leaf(std::uint32_t unit) { return ((unit >> 8U) & 1U) != 0; }
std::size_t value_of(std::uint32_t unit) { return unit & ((1U << 31U) - 1); }

}  // namespace

PrecompiledMap::PrecompiledMap(std::string_view base64) {
  const std::string bytes = from_base64(base64);
  const std::size_t size = bytes.size() < 4 ? 0 : number_at(bytes, 0);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - 4) {
    fail(Status::corrupt, "the map of characters has {} bytes, which do not hold its trie", bytes.size());
  }
  for (std::size_t at = 4; at < 4 + size; at += 4) trie_.push_back(number_at(bytes, at));
  texts_ = bytes.substr(4 + size);
  if (first_invalid_utf8(texts_)) fail(Status::corrupt, "the map of characters has texts that are not UTF-8");
}

std::uint32_t PrecompiledMap::unit(std::size_t at) const {
  if (at >= trie_.size()) fail(Status::corrupt, "the map of characters is damaged: its trie leads out of it");
  return trie_[at];
}

std::optional<std::string_view> PrecompiledMap::find(std::string_view text) const {
  std::size_t node = offset_of(unit(0));
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    node ^= byte;
    const std::uint32_t here = unit(node);
    if (label_of(here) != byte) break;
    node ^= offset_of(here);
    if (!has_leaf(here)) continue;
    const std::size_t begin = value_of(unit(node));
    const bool inside = begin <= texts_.size() && (begin == texts_.size() || (texts_[begin] & 0xc0) != 0x80);
    if (!inside) fail(Status::corrupt, "the map of characters is damaged: it has no text {}", begin);
    return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
  }
  return std::nullopt;
}

}  // namespace qdelta
