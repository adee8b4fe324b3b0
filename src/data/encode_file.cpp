#include "data/encode_file.h"

#include <span>

#include "core/error.h"
#include "data/documents.h"
#include "data/tokenizer.h"

namespace qdelta {
namespace {

constexpr std::size_t kMostText = std::size_t{1} << 33U;

// Longer than DocumentReader would want a document to be.
std::string read_text(const std::string& path, TextBytes bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 20U;
  const auto stream = open_text_stream(path, bytes);
  std::string text;
  std::size_t size = 0;
  for (std::size_t got = kPiece; got > 0; size += got) {
    if (size > kMostText) {
      fail(Status::unsupported, "{}: more than {} bytes, uncompressed; cut it into several files", path, kMostText);
    }
    text.resize(size + kPiece);
    got = stream->read(std::span(text).subspan(size));
  }
  text.resize(size);
  return text;
}

}  // namespace

EncodedFile encode_file(const Tokenizer& tokenizer, const std::string& path, const std::string& text_key,
                        TextBytes bytes) {
  EncodedFile encoded;
  if (format_of(path) == DocumentFormat::text) {
    const std::string text = read_text(path, bytes);
    encoded.ids = tokenizer.encode(text);
    if (!encoded.ids.empty()) encoded.ends.push_back(encoded.ids.size());
    encoded.bytes = text.size();
    return encoded;
  }
  DocumentOptions options;
  options.text_key = text_key;
  options.bytes = bytes;
  DocumentReader reader(path, options);
  std::string document;
  while (reader.next(document)) {
    encoded.bytes += document.size();
    const std::vector<std::int32_t> ids = tokenizer.encode(document);
    if (ids.empty()) continue;
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    if (tokenizer.eos()) encoded.ids.push_back(*tokenizer.eos());
    encoded.ends.push_back(encoded.ids.size());
  }
  return encoded;
}

}  // namespace qdelta
