#include "data/byte_tokenizer.h"

#include <nlohmann/json.hpp>

#include "data/byte_alphabet.h"
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

// Byte-pair encoding over the bytes' alphabet, without a single merge.
std::vector<TokenizerFile> ByteTokenizer::published_files() {
  using Json = nlohmann::ordered_json;
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[ByteAlphabet::get().encode(std::string(1, static_cast<char>(static_cast<unsigned char>(byte))))] = byte;
  }
  Json added = Json::array();
  for (const auto& [text, id] : {std::pair(kBosText, kBos), std::pair(kEosText, kEos)}) {
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json bos{{"SpecialToken", {{"id", kBosText}, {"type_id", 0}}}};
  const auto sequence = [](const char* name) { return Json{{"Sequence", {{"id", name}, {"type_id", 0}}}}; };
  const Json tokenizer{{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", added},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", bytes},
                       {"post_processor",
                        {{"type", "TemplateProcessing"},
                         {"single", Json::array({bos, sequence("A")})},
                         {"pair", Json::array({bos, sequence("A"), sequence("B")})},
                         {"special_tokens",
                          {{std::string(kBosText),
                            {{"id", kBosText}, {"ids", Json::array({kBos})}, {"tokens", Json::array({kBosText})}}}}}}},
                       {"decoder", bytes},
                       {"model",
                        {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"vocab", vocabulary},
                         {"merges", Json::array()}}}};
  const Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"bos_token", kBosText},
                    {"eos_token", kEosText},
                    {"split_special_tokens", true},
                    {"clean_up_tokenization_spaces", false}};
  return {{"tokenizer.json", tokenizer.dump() + "\n"}, {"tokenizer_config.json", config.dump(1) + "\n"}};
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
