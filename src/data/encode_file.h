// A file of text as ids, read as `qdelta tokenize` reads it: JSON lines by its name, uncompressed by its first bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/text_stream.h"

namespace qdelta {

class Tokenizer;

struct EncodedFile {
  std::vector<std::int32_t> ids;
  std::vector<std::size_t> ends;  // of each document that has ids, counted in them
  std::size_t bytes = 0;          // of text
};

// Text is one document, and nothing is added to it. JSON lines hold one each, in the member `text_key`, and it ends
// with the tokenizer's end of text, if it has one: something must tell where the next begins. Throws as DocumentReader
// does.
[[nodiscard]] EncodedFile encode_file(const Tokenizer& tokenizer, const std::string& path, const std::string& text_key,
                                      TextBytes bytes = TextBytes::utf8);

}  // namespace qdelta
