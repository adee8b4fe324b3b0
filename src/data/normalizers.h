// The normalizers of tokenizer.json: what is done to a text before it is cut into words.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/checked_json.h"

namespace qdelta {

struct NormalizedText {
  std::string text;
  // Whether its first character came from the first of the input: Metaspace's "first" asks.
  bool starts_at_start = true;
};

class Normalizer {
 public:
  Normalizer() = default;
  virtual ~Normalizer() = default;
  Normalizer(const Normalizer&) = delete;
  Normalizer& operator=(const Normalizer&) = delete;

  // Valid UTF-8 in place. May be called from several threads at once.
  virtual void apply(NormalizedText& text) const = 0;
};

// Null for a JSON null. Throws Error(unsupported) for a normalizer or a setting that is not known, Error(corrupt).
[[nodiscard]] std::unique_ptr<Normalizer> make_normalizer(const JsonAt& json);

}  // namespace qdelta
