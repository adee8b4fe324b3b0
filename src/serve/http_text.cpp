#include "serve/http_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace qdelta::serve {
namespace {

constexpr int kNoContent = 204;  // has no body, and so no length of one

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case kNoContent:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 507:
      return "Insufficient Storage";
    default:
      return "";
  }
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::optional<Refusal> refuse_framing(const HttpRequest& request) {
  int lengths = 0;
  int encodings = 0;
  int hosts = 0;
  for (const auto& [name, value] : request.headers) {
    if (name == "content-length") {
      ++lengths;
      if (value.empty() || !std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; })) {
        return Refusal{400, "Content-Length must be a number of bytes"};
      }
    }
    if (name == "host") ++hosts;
    if (name == "transfer-encoding") {
      ++encodings;
      if (value != "chunked") return Refusal{501, "the only Transfer-Encoding that is known here is chunked"};
    }
    if (name == "content-encoding" && value != "identity") {
      return Refusal{415, "Content-Encoding: send the body as it is"};
    }
  }
  if (hosts > 1) return Refusal{400, "there are several Hosts"};
  if (lengths > 1) return Refusal{400, "there are several Content-Lengths"};
  if (encodings > 1) return Refusal{400, "there are several Transfer-Encodings"};
  if (lengths > 0 && encodings > 0) return Refusal{400, "Content-Length and Transfer-Encoding contradict one another"};
  return std::nullopt;
}

std::string head_of(const HttpAnswer& answer, Ending ending, bool keep_alive) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", answer.status, reason_of(answer.status), answer.type);
  const auto out = std::back_inserter(head);
  for (const auto& [name, value] : answer.headers) fmt::format_to(out, "{}: {}\r\n", name, value);
  if (ending == Ending::length && answer.status != kNoContent)
    fmt::format_to(out, "Content-Length: {}\r\n", answer.body.size());
  if (ending == Ending::chunks) head += "Transfer-Encoding: chunked\r\n";
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int byte = 0;
    const char* digits = text.data() + i + 1;
    const bool escape = text[i] == '%' && i + 2 < text.size() &&
                        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2 && *digits != '-';
    out += escape ? static_cast<char>(byte) : text[i];
    if (escape) i += 2;
  }
  return out;
}

std::string chunk_of(const std::string& data) { return fmt::format("{:x}\r\n{}\r\n", data.size(), data); }

}  // namespace qdelta::serve
