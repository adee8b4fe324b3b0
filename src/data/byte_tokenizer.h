// The tokenizer that needs no file: a byte is an id.
#pragma once

#include "data/tokenizer.h"

namespace qdelta {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr std::int32_t kBos = 256;
  static constexpr std::int32_t kEos = 257;

  ByteTokenizer();
  [[nodiscard]] std::string token(std::int32_t id) const override;
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override;

  // The same as Hugging Face's files, for others who read a checkpoint; the engine needs none.
  [[nodiscard]] static std::vector<TokenizerFile> published_files();

 private:
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::string decode_text(std::span<const std::int32_t> ids, Special special) const override;
  std::string decode_raw(std::span<const std::int32_t> ids, Special special) const override;
  [[nodiscard]] bool takes_any_bytes() const override { return true; }
};

}  // namespace qdelta
