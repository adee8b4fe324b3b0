#include "data/documents.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>

#include "core/error.h"
#include "data/checked_json.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr std::size_t kReadAtOnce = std::size_t{1} << 18U;
constexpr std::size_t kLargestDocument = std::size_t{1} << 30U;
constexpr std::size_t kLongestJsonLine = kSmallJson.bytes;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

DocumentFormat format_of(std::string_view path) {
  for (const std::string_view suffix : {".gz", ".xz", ".zst"}) {
    if (path.ends_with(suffix)) path.remove_suffix(suffix.size());
  }
  const bool lines = path.ends_with(".jsonl") || path.ends_with(".ndjson");
  return lines ? DocumentFormat::json_lines : DocumentFormat::text;
}

DocumentReader::DocumentReader(const std::string& path, const DocumentOptions& options)
    : path_(path), options_(options), stream_(open_text_stream(path, options.bytes)) {
  if (options_.format == DocumentFormat::automatic) options_.format = format_of(path);
}

bool DocumentReader::fill() {
  if (at_end_) return false;
  buffer_.erase(0, begin_);
  begin_ = 0;
  // What is compressed well may be any amount.
  if (options_.format == DocumentFormat::json_lines && buffer_.size() > kLongestJsonLine) {
    fail(Status::unsupported, "{}: line {}: more than {} bytes; each line must be one document, shorter than that",
         path_, line_ + 1, kLongestJsonLine);
  }
  if (buffer_.size() > kLargestDocument) {
    fail(Status::unsupported,
         "{}: a document of more than {} bytes; cut the text into documents with --document-separator or "
         "--paragraphs, or lines into shorter ones",
         path_, kLargestDocument);
  }
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kReadAtOnce);
  const std::size_t got = stream_->read(std::span(buffer_).subspan(before));
  buffer_.resize(before + got);
  at_end_ = got == 0;
  return !at_end_;
}

bool DocumentReader::read_until(std::string_view end, std::string& text) {
  std::size_t searched = 0;  // from begin_; no need to look there again
  while (true) {
    const std::size_t at = end.empty() ? std::string::npos : buffer_.find(end, begin_ + searched);
    if (at != std::string::npos) {
      text.assign(buffer_, begin_, at - begin_);
      begin_ = at + end.size();
      return true;
    }
    const std::size_t size = buffer_.size() - begin_;
    searched = size - std::min(size, end.empty() ? 0 : end.size() - 1);
    if (!fill()) break;
  }
  if (begin_ == buffer_.size()) return false;
  text.assign(buffer_, begin_);
  begin_ = buffer_.size();
  return true;
}

bool DocumentReader::next(std::string& document) {
  if (options_.format == DocumentFormat::json_lines) return next_json_line(document);
  if (options_.paragraphs) return next_paragraph(document);
  while (read_until(options_.separator, document)) {
    if (!document.empty()) return true;
    ++empty_;
  }
  return false;
}

bool DocumentReader::next_paragraph(std::string& document) {
  document.clear();
  std::string line;
  while (read_until("\n", line)) {
    if (!is_blank(line)) {
      if (!document.empty()) document += '\n';
      document += line;
    } else if (!document.empty()) {
      return true;
    }
  }
  return !document.empty();
}

bool DocumentReader::next_json_line(std::string& document) {
  std::string line;
  while (read_until("\n", line)) {
    ++line_;
    if (is_blank(line)) continue;
    const auto refuse = [&](const std::string& what) { fail(Status::corrupt, "{}: line {}: {}", path_, line_, what); };
    nlohmann::json json = parse_json(line, fmt::format("{}: line {}", path_, line_), kSmallJson);
    if (!json.is_object()) refuse(fmt::format("a {} where there should be an object", json.type_name()));
    const auto found = json.find(options_.text_key);
    if (found == json.end()) {
      std::vector<std::string> keys;
      for (const auto& [key, value] : json.items()) {
        if (value.is_string() && keys.size() < 8) keys.push_back(shown(key));
      }
      refuse(fmt::format("there is no {}; --text-key names the member that holds the text{}{}",
                         shown(options_.text_key), keys.empty() ? "" : ", such as ", fmt::join(keys, ", ")));
    }
    if (!found->is_string()) {
      refuse(fmt::format("{} is a {}, not a string", shown(options_.text_key), found->type_name()));
    }
    document = std::move(found->get_ref<std::string&>());
    if (!document.empty()) return true;
    ++empty_;
  }
  return false;
}

}  // namespace qdelta
