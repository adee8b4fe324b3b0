#include "io/parse_json.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "io/regular_file.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

struct Extent {
  std::size_t values = 1;  // not fewer than there are
  int depth = 0;
};

Extent extent_of(std::string_view text) {
  Extent extent;
  int depth = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      ++extent.values;
    } else if (c == '[' || c == '{') {
      ++extent.values;
      extent.depth = std::max(extent.depth, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return extent;
}

void check(std::string_view text, const std::string& label, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    fail(Status::corrupt, "{}: {} bytes of JSON are too many; at most {} are read", label, text.size(), limits.bytes);
  }
  if (const auto at = first_invalid_utf8(text)) fail(Status::corrupt, "{}: not valid UTF-8 at byte {}", label, *at);
  // The parser takes a NUL for the end.
  if (text.find('\0') != std::string_view::npos) fail(Status::corrupt, "{}: not valid JSON: it has a NUL", label);
  const Extent extent = extent_of(text);
  if (extent.depth > limits.depth) fail(Status::corrupt, "{}: nested more than {} levels deep", label, limits.depth);
  if (extent.values > limits.values) fail(Status::corrupt, "{}: more than {} JSON values", label, limits.values);
}

template <class Json>
Json parse(std::string_view text, const std::string& label, const JsonLimits& limits) {
  check(text, label, limits);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    fail(Status::corrupt, "{}: not valid JSON: {}", label, json_complaint(error));
  }
}

// Ids
// ------------------------------------------------------------------------------------------------------------------

// A text without its long arrays of ids, in whose place there are empty ones.
struct WithoutIds {
  std::string text;
  std::size_t values = 0;  // that were taken out
  struct Array {
    std::size_t number;  // among all arrays, in the order in which they begin
    std::vector<std::int32_t> ids;
  };
  std::vector<Array> arrays;
};

const char* skip_space(const char* at, const char* end) {
  while (at != end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) ++at;
  return at;
}

// Behind the quote that ends a string.
const char* skip_string(const char* at, const char* end) {
  while (at != end && *at != '"') at += *at == '\\' && at + 1 != end ? 2 : 1;
  return at == end ? end : at + 1;
}

// A whole number of at most 2^31 - 1; at its beginning again where there is none. Up to seven digits without a branch
// for each: which is the last is guessed wrong for nearly every id, and that takes longer than all the rest.
const char* read_id(const char* at, const char* end, std::int32_t& id) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::uint64_t kEach = 0x0101010101010101;
  std::uint64_t text = 0;
  if (end - at >= 8) std::memcpy(&text, at, 8);
  const std::uint64_t digits = text ^ (0x30 * kEach);
  // The highest bit of each byte that is no digit; behind the first, of some others too.
  const std::uint64_t others = (digits | (digits + (0x80 - 10) * kEach)) & (0x80 * kEach);
  const int bits = std::countr_zero(others) - 7;  // of the digits before it
  if (end - at < 8 || bits == 0 || others == 0) {
    const auto [behind, error] = std::from_chars(at, end, id);
    return error == std::errc() && *at != '-' ? behind : at;
  }
  // As eight digits, the first of them zeros: two together, four, all.
  std::uint64_t sum = digits << (64 - bits);
  sum = (sum * 10 + (sum >> 8)) & 0x00FF00FF00FF00FF;
  sum = (sum * 100 + (sum >> 16)) & 0x0000FFFF0000FFFF;
  sum = (sum * 10000 + (sum >> 32)) & 0xFFFFFFFF;
  id = static_cast<std::int32_t>(sum);
  return at + bits / 8;
}

// Reads the ids of an array whose bracket is behind us. Null where there is anything else in it: to JSON 01 is no
// number.
const char* read_ids(const char* at, const char* end, std::vector<std::int32_t>& ids) {
  ids.clear();
  while (true) {
    at = skip_space(at, end);
    const char* const first = at;
    std::int32_t id = 0;
    at = read_id(at, end, id);
    if (at == first || (*first == '0' && at != first + 1)) return nullptr;
    ids.push_back(id);
    at = skip_space(at, end);
    if (at == end || (*at != ',' && *at != ']')) return nullptr;
    if (*at++ == ']') return at;
  }
}

WithoutIds without_ids(std::string_view text) {
  WithoutIds result;
  std::vector<std::int32_t> ids;
  std::size_t arrays = 0;
  const char* copied = text.data();
  const char* const end = text.data() + text.size();
  for (const char* at = copied; at != end;) {
    const char c = *at++;
    if (c == '"') at = skip_string(at, end);
    if (c != '[') continue;
    const std::size_t number = arrays++;
    const char* const behind = read_ids(at, end, ids);
    if (behind == nullptr || ids.size() < kFewestIds) continue;
    result.text.append(copied, at).push_back(']');
    result.values += ids.size();
    result.arrays.push_back({number, std::exchange(ids, {})});
    at = copied = behind;
  }
  result.text.append(copied, end);
  return result;
}

nlohmann::json as_value(std::span<const std::int32_t> ids) {
  std::vector<std::uint8_t> bytes(ids.size_bytes());
  std::memcpy(bytes.data(), ids.data(), bytes.size());
  return nlohmann::json::binary(std::move(bytes));
}

// Parses the rest and puts the ids into their places.
nlohmann::json parse_around(const WithoutIds& rest) {
  std::vector<std::size_t> open;  // numbers of the arrays that we are in
  std::size_t arrays = 0;
  auto next = rest.arrays.begin();
  const auto place = [&](int /*depth*/, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (event == nlohmann::json::parse_event_t::array_start) open.push_back(arrays++);
    if (event != nlohmann::json::parse_event_t::array_end) return true;
    if (next != rest.arrays.end() && next->number == open.back()) value = as_value((next++)->ids);
    open.pop_back();
    return true;
  };
  return nlohmann::json::parse(rest.text.begin(), rest.text.end(), place);
}

}  // namespace

nlohmann::json parse_json_with_ids(std::string_view text, const std::string& label, const JsonLimits& limits) {
  const WithoutIds rest = text.size() > limits.bytes ? WithoutIds() : without_ids(text);
  if (rest.values > 0 && rest.values <= limits.values) {
    try {
      check(rest.text, label, {limits.bytes, limits.values - rest.values, limits.depth});
      return parse_around(rest);
    } catch (const Error&) {  // what is wrong, and where, the whole text shows:
    } catch (const nlohmann::json::exception&) {
    }
  }
  return parse_json(text, label, limits);
}

std::vector<std::int32_t> json_ids(const nlohmann::json& value) {
  const auto& bytes = value.get_binary();
  std::vector<std::int32_t> ids(bytes.size() / sizeof(std::int32_t));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

nlohmann::json parse_json(std::string_view text, const std::string& label, const JsonLimits& limits) {
  return parse<nlohmann::json>(text, label, limits);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& label, const JsonLimits& limits) {
  return parse<nlohmann::ordered_json>(text, label, limits);
}

nlohmann::json read_json_file(const std::string& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.bytes), path, limits);
}

void read_json_events(std::string_view text, nlohmann::json_sax<nlohmann::json>& reader) {
  nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &reader);
}

std::string json_complaint(const nlohmann::json::exception& error) {
  std::string_view what = error.what();
  if (const std::size_t tag = what.find("] "); tag != std::string_view::npos) what.remove_prefix(tag + 2);
  return shown(what);
}

}  // namespace qdelta
