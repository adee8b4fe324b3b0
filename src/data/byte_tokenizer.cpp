#include "data/byte_tokenizer.h"

#include "data/unicode.h"

namespace qdelta {
namespace {

constexpr std::string_view kBosText = "<bos>";
constexpr std::string_view kEosText = "<eos>";

}  // namespace

ByteTokenizer::ByteTokenizer() {
  Traits traits;
  traits.name = "bytes";
  traits.vocab_size = kEos + 1;
  traits.bos = kBos;
  traits.eos = kEos;
  traits.prefix = {kBos};
  traits.fingerprint = Fingerprint({"bytes"});
  set_traits(std::move(traits));
}

std::string ByteTokenizer::token(std::int32_t id) const {
  if (id == kBos) return std::string(kBosText);
  if (id == kEos) return std::string(kEosText);
  return id >= 0 && id < 256 ? std::string(1, static_cast<char>(static_cast<unsigned char>(id))) : "";
}

std::optional<std::int32_t> ByteTokenizer::id_of(std::string_view token) const {
  if (token == kBosText) return kBos;
  if (token == kEosText) return kEos;
  if (token.size() == 1) return static_cast<unsigned char>(token[0]);
  return std::nullopt;
}

void ByteTokenizer::encode_text(std::string_view text, std::vector<std::int32_t>& ids) const {
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

std::string ByteTokenizer::decode_text(std::span<const std::int32_t> ids, Special special) const {
  return unicode::with_replacements(decode_raw(ids, special));
}

std::string ByteTokenizer::decode_raw(std::span<const std::int32_t> ids, Special special) const {
  std::string text;
  text.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (id < 256 || special == Special::keep) text += token(id);
  }
  return text;
}

}  // namespace qdelta
