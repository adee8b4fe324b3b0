// Documents, one after the other, out of a file of text or of JSON lines.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_stream.h"

namespace qdelta {

enum class DocumentFormat { automatic, text, json_lines };

struct DocumentOptions {
  // By the name, without .gz, .xz or .zst: .jsonl and .ndjson are JSON lines, everything else is text.
  DocumentFormat format = DocumentFormat::automatic;
  std::string text_key = "text";  // the member of a JSON line that holds the text
  // Text is cut into documents at this, or at blank lines; else the file is one document.
  std::string separator;
  bool paragraphs = false;
  // Whether what is not UTF-8 is refused or taken as it is.
  TextBytes bytes = TextBytes::utf8;
};

// What `automatic` is for this file.
[[nodiscard]] DocumentFormat format_of(std::string_view path);

class DocumentReader {
 public:
  // Throws Error(io) when the file cannot be read.
  DocumentReader(const std::string& path, const DocumentOptions& options);

  // The next document that is not empty; false when there is none. Throws Error(io), or Error(corrupt) with the place
  // in the file.
  bool next(std::string& document);
  // Bytes of the file that have been read, and documents that were left out because they are empty.
  [[nodiscard]] std::uint64_t consumed() const { return stream_->consumed(); }
  [[nodiscard]] std::int64_t empty() const { return empty_; }

 private:
  // The text up to the next `end`, which is not part of it; false at the end of the file.
  bool read_until(std::string_view end, std::string& text);
  bool fill();
  bool next_json_line(std::string& document);
  bool next_paragraph(std::string& document);

  std::string path_;
  DocumentOptions options_;
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  std::size_t begin_ = 0;  // of what has not been handed out
  bool at_end_ = false;
  std::int64_t line_ = 0;
  std::int64_t empty_ = 0;
};

}  // namespace qdelta
