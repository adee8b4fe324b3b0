// What the library does not tell about a SentencePiece model, read from its file (a protocol buffer, sentencepiece's
// own sentencepiece_model.proto).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace qdelta {

struct SentencePieceModel {
  bool byte_pair_encoding = false;
  bool identity_normalizer = false;   // no table of characters to replace
  bool identity_denormalizer = true;  // nor on the way back
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  bool user_defined_pieces = false;
};

// nullopt when it is not a well-formed message.
[[nodiscard]] std::optional<SentencePieceModel> read_sentencepiece_model(std::string_view contents);

}  // namespace qdelta
