// What of HTTP/1.1 is text: which framings of a body are accepted, and the heads of answers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace qdelta::serve {

// Why a request's headers do not say where its body ends, or whom it is for; nothing where they do. Stricter than the
// standard: a length is digits and given once, and a body has a length or comes in chunks, not both. Proxies that read
// what is refused here differently could be made to see other requests than this server.
struct Refusal {
  int status = 400;
  std::string why;
};
[[nodiscard]] std::optional<Refusal> refuse_framing(const HttpRequest& request);

// How an answer's body ends.
enum class Ending { length, chunks, close };
[[nodiscard]] std::string head_of(const HttpAnswer& answer, Ending ending, bool keep_alive);
// A part of a path without its escapes: "a%2Fb" is "a/b". What is no escape stays.
[[nodiscard]] std::string unescaped(std::string_view text);
// One piece of a body in chunks.
[[nodiscard]] std::string chunk_of(const std::string& data);

}  // namespace qdelta::serve
