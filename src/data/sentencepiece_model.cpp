#include "data/sentencepiece_model.h"

#include <cstdint>

namespace qdelta {
namespace {

// One field after another of a protocol buffer message.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  // False at the end, or where the message is broken: then ok() is false.
  bool next() {
    if (rest_.empty() || !ok_) return false;
    const std::uint64_t key = varint();
    number_ = static_cast<int>(key >> 3U);
    value_ = 0;
    bytes_ = {};
    switch (key & 7U) {
      case 0:
        value_ = varint();
        break;
      case 1:
        bytes_ = take(8);
        break;
      case 2:
        bytes_ = take(varint());
        break;
      case 5:
        bytes_ = take(4);
        break;
      default:
        ok_ = false;
    }
    return ok_;
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] std::uint64_t value() const { return value_; }
  [[nodiscard]] std::string_view bytes() const { return bytes_; }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  std::string_view take(std::uint64_t length) {
    if (length > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
  int number_ = 0;
  std::uint64_t value_ = 0;
  std::string_view bytes_;
};

bool read_piece(std::string_view message, SentencePieceModel& model) {
  constexpr int kType = 3;
  constexpr std::uint64_t kUserDefined = 4;
  Fields fields(message);
  while (fields.next()) {
    if (fields.number() == kType && fields.value() == kUserDefined) model.user_defined_pieces = true;
  }
  return fields.ok();
}

bool read_trainer(std::string_view message, SentencePieceModel& model) {
  constexpr int kModelType = 3;
  constexpr int kWhitespaceAsSuffix = 24;
  Fields fields(message);
  while (fields.next()) {
    if (fields.number() == kModelType) model.byte_pair_encoding = fields.value() == 2;
    if (fields.number() == kWhitespaceAsSuffix) model.whitespace_as_suffix = fields.value() != 0;
  }
  return fields.ok();
}

bool read_normalizer(std::string_view message, SentencePieceModel& model) {
  model.identity_normalizer = true;
  Fields fields(message);
  while (fields.next()) {
    if (fields.number() == 2 && !fields.bytes().empty()) model.identity_normalizer = false;
    if (fields.number() == 3) model.add_dummy_prefix = fields.value() != 0;
    if (fields.number() == 4) model.remove_extra_whitespaces = fields.value() != 0;
    if (fields.number() == 5) model.escape_whitespaces = fields.value() != 0;
  }
  return fields.ok();
}

bool read_denormalizer(std::string_view message, SentencePieceModel& model) {
  Fields fields(message);
  while (fields.next()) {
    if (fields.number() == 2 && !fields.bytes().empty()) model.identity_denormalizer = false;
  }
  return fields.ok();
}

}  // namespace

std::optional<SentencePieceModel> read_sentencepiece_model(std::string_view contents) {
  SentencePieceModel model;
  Fields fields(contents);
  bool ok = true;
  while (ok && fields.next()) {
    if (fields.number() == 1) ok = read_piece(fields.bytes(), model);
    if (fields.number() == 2) ok = read_trainer(fields.bytes(), model);
    if (fields.number() == 3) ok = read_normalizer(fields.bytes(), model);
    if (fields.number() == 5) ok = read_denormalizer(fields.bytes(), model);
  }
  if (!ok || !fields.ok()) return std::nullopt;
  return model;
}

}  // namespace qdelta
