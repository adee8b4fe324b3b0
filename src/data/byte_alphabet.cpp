#include "data/byte_alphabet.h"

#include "data/unicode.h"

namespace qdelta {

const ByteAlphabet& ByteAlphabet::get() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

ByteAlphabet::ByteAlphabet() {
  // Bytes that are printable in Latin-1 stand for themselves, the others follow from U+0100 on.
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    codes_[byte] = printable ? byte : next++;
    bytes_[codes_[byte]] = static_cast<std::int16_t>(byte);
  }
}

std::string ByteAlphabet::encode(std::string_view bytes) const {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) unicode::append(text, code(static_cast<unsigned char>(byte)));
  return text;
}

std::optional<std::string> ByteAlphabet::decode(std::string_view characters) const {
  std::string bytes;
  bytes.reserve(characters.size());
  for (std::size_t at = 0; at < characters.size();) {
    const unicode::Character c = unicode::character_at(characters.data() + at);
    if (c.code >= kCodes || bytes_[c.code] < 0) return std::nullopt;
    bytes += static_cast<char>(static_cast<unsigned char>(bytes_[c.code]));
    at += c.length;
  }
  return bytes;
}

}  // namespace qdelta
