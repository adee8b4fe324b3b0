// A file that is to be text, as a stream of bytes: what is none is refused, with what it looks like instead.
#pragma once

#include <memory>
#include <string>

#include "data/byte_stream.h"

namespace qdelta {

enum class TextBytes { utf8, any };

// Uncompressed on the way, as open_byte_stream does it. Unless any bytes may come, reading throws Error(corrupt) where
// they are not UTF-8, or where the file starts like one of a binary format: which file, at which byte, what it looks
// like and how to make text of it.
[[nodiscard]] std::unique_ptr<ByteStream> open_text_stream(const std::string& path, TextBytes bytes);

// Reads the start of the file, and throws as above.
void check_starts_as_text(const std::string& path);

}  // namespace qdelta
