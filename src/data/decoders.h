// The decoders of tokenizer.json: from tokens back to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/checked_json.h"

namespace qdelta {

// What to do with bytes that are not UTF-8: put U+FFFD, as the Hugging Face library does, or leave them as they are,
// for whoever puts a text together piece by piece.
enum class Bytes { replace, keep };

class Decoder {
 public:
  Decoder() = default;
  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  virtual void apply(std::vector<std::string>& tokens, Bytes bytes) const = 0;
  // ByteLevel alone: each token can be turned to bytes by itself.
  [[nodiscard]] virtual bool is_byte_level() const { return false; }
};

// Null for a JSON null. Throws Error(unsupported) for a decoder or a setting that is not known, Error(corrupt).
[[nodiscard]] std::unique_ptr<Decoder> make_decoder(const JsonAt& json);

}  // namespace qdelta
