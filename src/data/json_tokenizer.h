// tokenizer.json, as the Hugging Face library (tokenizers 0.23) reads it:
//
//   added tokens     cut out of the text, those that are not "normalized" first
//   normalizer       over what lies between them (normalizers.h), then the "normalized" added tokens
//   pre-tokenizers   words (pre_tokenizers.h)
//   model            ids of each word (bpe_model.h, unigram_model.h, word_models.h)
//   post-processor   tokens before and after; only in encode_with_special
//   decoder          back to text (decoders.h)
//
// Whatever a file asks for that is none of these is refused with its name and place. "truncation" and "padding" are
// about batches of inputs, not about ids, and are not looked at.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/special_roles.h"
#include "data/tokenizer.h"

namespace qdelta {

// `contents` of a tokenizer.json, `label` its path for messages; `files` beside it to be saved with it.
[[nodiscard]] std::unique_ptr<Tokenizer> make_json_tokenizer(std::string contents, const std::string& label,
                                                             const SpecialRoles& roles,
                                                             std::vector<TokenizerFile> files);

// GPT-2's own two files: a JSON object from tokens to ids, and a line for each merge. They do not say how text becomes
// words, so this is for byte-level vocabularies cut as GPT-2 does; any other is refused.
[[nodiscard]] std::unique_ptr<Tokenizer> make_gpt2_tokenizer(std::string vocabulary,
                                                             const std::string& vocabulary_label, std::string merges,
                                                             const std::string& merges_label, const SpecialRoles& roles,
                                                             std::vector<TokenizerFile> files);

}  // namespace qdelta
