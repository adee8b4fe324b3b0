// SentencePiece models, through its library.
//
// The library takes a document as one word and is slow on it. A plain BPE model (no table of characters to normalize,
// no pieces defined by the user) is the same thing as ours, with scores for ranks: where the model's own settings show
// that it is one, our encoder does the work, word by word and with its cache. tests/data holds both to the same ids.
#pragma once

#include <memory>

#include "data/special_roles.h"
#include "data/tokenizer.h"

namespace qdelta {

enum class SentencePieceEncoder { fastest, library };

// `contents` of a .model file, `label` its path; `files` beside it to be saved with it.
[[nodiscard]] std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(
    std::string contents, const std::string& label, const SpecialRoles& roles, std::vector<TokenizerFile> files,
    SentencePieceEncoder encoder = SentencePieceEncoder::fastest);

}  // namespace qdelta
