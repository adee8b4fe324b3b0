// The one way from text to JSON values, within limits: what a file or a request holds may be anybody's.
// scripts/check_layers.py sees to it that nobody else parses.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qdelta {

// A value takes some twenty times the memory of its text, at the worst; and whoever reads or destroys it may call
// itself for each level.
struct JsonLimits {
  std::size_t bytes = std::size_t{1} << 29U;
  std::size_t values = std::size_t{1} << 23U;
  int depth = 100;
};
// For what has a few keys: a config, an index of tensors, a line of a log or of a data set.
inline constexpr JsonLimits kSmallJson{.bytes = std::size_t{1} << 26U, .values = std::size_t{1} << 20U};

// Throws Error(corrupt) with the label where it is no JSON, has a NUL or bad UTF-8, or is beyond the limits.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::string& label, const JsonLimits& limits = {});
// The same, with the keys in the order of the text.
[[nodiscard]] nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& label,
                                                        const JsonLimits& limits = {});

// As parse_json, for requests with thousands of token ids: nlohmann takes 0.1 us for each number. An array of
// kFewestIds or more whole numbers from 0 to 2^31 - 1, and nothing else, becomes a value that is_json_ids() knows, not
// an array.
inline constexpr std::size_t kFewestIds = 16;
[[nodiscard]] nlohmann::json parse_json_with_ids(std::string_view text, const std::string& label,
                                                 const JsonLimits& limits = {});
[[nodiscard]] inline bool is_json_ids(const nlohmann::json& value) { return value.is_binary(); }
[[nodiscard]] std::vector<std::int32_t> json_ids(const nlohmann::json& value);

// Of a regular file. Throws Error(io) where it cannot be read.
[[nodiscard]] nlohmann::json read_json_file(const std::string& path, const JsonLimits& limits = kSmallJson);

// The text that a member of an object is; empty where there is no such member, or it is something else.
template <class Json>
[[nodiscard]] std::string text_member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->template get<std::string>() : std::string();
}

// Calls the reader for each part of the text, which it must have checked for NULs; no values are made.
void read_json_events(std::string_view text, nlohmann::json_sax<nlohmann::json>& reader);

// What nlohmann says is wrong, without its own tag in front, fit for a message.
[[nodiscard]] std::string json_complaint(const nlohmann::json::exception& error);

}  // namespace qdelta
