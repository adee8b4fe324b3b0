#include "io/parse_json.h"

#include <algorithm>

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

template <class Json>
Json parse(std::string_view text, const std::string& label, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    fail(Status::corrupt, "{}: {} bytes of JSON are too many; at most {} are read", label, text.size(), limits.bytes);
  }
  if (const auto at = first_invalid_utf8(text)) fail(Status::corrupt, "{}: not valid UTF-8 at byte {}", label, *at);
  // The parser takes a NUL for the end.
  if (text.find('\0') != std::string_view::npos) fail(Status::corrupt, "{}: not valid JSON: it has a NUL", label);
  const Extent extent = extent_of(text);
  if (extent.depth > limits.depth) fail(Status::corrupt, "{}: nested more than {} levels deep", label, limits.depth);
  if (extent.values > limits.values) fail(Status::corrupt, "{}: more than {} JSON values", label, limits.values);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    fail(Status::corrupt, "{}: not valid JSON: {}", label, json_complaint(error));
  }
}

}  // namespace

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
