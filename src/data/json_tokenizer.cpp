#include "data/json_tokenizer.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "data/added_tokens.h"
#include "data/byte_alphabet.h"
#include "data/checked_json.h"
#include "data/decoders.h"
#include "data/normalizers.h"
#include "data/post_processor.h"
#include "data/pre_tokenizers.h"
#include "data/read_model.h"
#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

// Names that end a text or start it, for files that come without a tokenizer_config.json.
constexpr std::string_view kUsualBos[] = {"<s>", "<|begin_of_text|>", "<bos>"};
constexpr std::string_view kUsualEos[] = {"</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>"};

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(const nlohmann::json& json, const std::string& label, const SpecialRoles& roles, std::string name,
                Fingerprint fingerprint, std::vector<TokenizerFile> files);

  [[nodiscard]] std::string token(std::int32_t id) const override {
    const std::string* found = token_of(id);
    return found != nullptr ? *found : "";
  }
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override;

 private:
  void read_added_tokens(const JsonAt& json, bool split_special);
  [[nodiscard]] std::optional<std::int32_t> role(const std::optional<std::string>& named,
                                                 std::span<const std::string_view> usual) const;
  [[nodiscard]] const std::string* token_of(std::int32_t id) const;
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const override;
  void encode_piece(const Piece& piece, std::vector<std::int32_t>& ids) const;
  [[nodiscard]] std::string decoded(std::span<const std::int32_t> ids, Special special, Bytes bytes) const;
  std::string decode_text(std::span<const std::int32_t> ids, Special special) const override {
    return decoded(ids, special, Bytes::replace);
  }
  std::string decode_raw(std::span<const std::int32_t> ids, Special special) const override {
    return decoded(ids, special, Bytes::keep);
  }

  std::unique_ptr<Normalizer> normalizer_;
  PreTokenizers pre_tokenizers_;
  std::unique_ptr<TokenModel> model_;
  std::unique_ptr<Decoder> decoder_;
  AddedTokens added_;

  std::vector<std::string> added_text_;  // by id: what decoding sees; empty where the model's token holds
  std::vector<bool> special_;            // by id
  std::vector<std::string> bytes_;       // by id, where the decoder is ByteLevel alone
};

JsonTokenizer::JsonTokenizer(const nlohmann::json& json, const std::string& label, const SpecialRoles& roles,
                             std::string name, Fingerprint fingerprint, std::vector<TokenizerFile> files) {
  const JsonAt top(json, label);
  if (!json.is_object()) top.corrupt("must be a JSON object");
  if (top.has("version") && top.at("version").text() != "1.0") {
    top.at("version").unsupported("{} is not known, only \"1.0\"", shown(top.at("version").text()));
  }
  static const nlohmann::json nothing;
  const auto part = [&](const char* key) { return top.has(key) ? top.at(key) : JsonAt(nothing, label); };
  normalizer_ = make_normalizer(part("normalizer"));
  pre_tokenizers_ = make_pre_tokenizers(part("pre_tokenizer"), may_take_bytes(top.at("model")));
  model_ = read_model(top.at("model"), pre_tokenizers_.model_takes_bytes);
  decoder_ = make_decoder(part("decoder"));
  if (!part("added_tokens").is_null()) {
    read_added_tokens(top.at("added_tokens"), roles.split_special.value_or(false));
  }

  Traits traits;
  traits.name = std::move(name);
  traits.vocab_size = std::max(model_->vocabulary().end_id(), static_cast<std::int32_t>(added_text_.size()));
  const Affixes affixes = read_post_processor(part("post_processor"), traits.vocab_size);
  traits.prefix = affixes.prefix;
  traits.suffix = affixes.suffix;
  traits.bos = role(roles.bos, kUsualBos);
  if (!traits.bos && traits.prefix.size() == 1) traits.bos = traits.prefix[0];
  traits.eos = role(roles.eos, kUsualEos);
  traits.pad = role(roles.pad, {});
  traits.fingerprint = fingerprint;
  traits.files = std::move(files);

  if (decoder_ != nullptr && decoder_->is_byte_level()) {
    bytes_.resize(static_cast<std::size_t>(traits.vocab_size));
    for (std::int32_t id = 0; id < traits.vocab_size; ++id) {
      const std::string* text = token_of(id);
      if (text == nullptr) continue;
      bytes_[static_cast<std::size_t>(id)] = ByteAlphabet::get().decode(*text).value_or(*text);
    }
  }
  set_traits(std::move(traits));
}

void JsonTokenizer::read_added_tokens(const JsonAt& json, bool split_special) {
  std::vector<AddedToken> tokens;
  std::vector<std::string> forms;
  std::unordered_set<std::string> contents;
  // New ones get the ids after the model's: as many as it has tokens, whatever their ids.
  auto next_id = static_cast<std::int64_t>(model_->vocabulary().count());
  for (const JsonAt& entry : json.elements()) {
    entry.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.content = entry.at("content").text();
    token.id = static_cast<std::int32_t>(entry.at("id").integer(0, kLargestId));
    token.single_word = entry.at("single_word").boolean();
    token.lstrip = entry.at("lstrip").boolean();
    token.rstrip = entry.at("rstrip").boolean();
    token.normalized = entry.at("normalized").boolean();
    token.special = entry.at("special").boolean();
    if (token.content.empty()) entry.corrupt("the content is empty");
    if (!contents.insert(token.content).second) entry.corrupt("{} is added twice", shown(token.content));
    const std::optional<std::int32_t> in_model = model_->vocabulary().id_of(token.content);
    const std::int64_t expected = in_model ? *in_model : next_id++;
    if (token.id != expected) {
      entry.corrupt("{} has the id {}, but {} it would get {}; the reference library would not use the file's id",
                    shown(token.content), token.id, in_model ? "by the model's vocabulary" : "as the next new token",
                    expected);
    }
    NormalizedText form{token.content, true};
    if (token.normalized && normalizer_ != nullptr) entry.within([&] { normalizer_->apply(form); });
    // When decoding, the form in which it was found.
    const auto at = static_cast<std::size_t>(token.id);
    if (added_text_.size() <= at) added_text_.resize(at + 1);
    added_text_[at] = form.text.empty() ? token.content : form.text;
    if (special_.size() <= at) special_.resize(at + 1);
    if (split_special && token.special) form.text.clear();  // an empty one is not looked for
    forms.push_back(std::move(form.text));
    tokens.push_back(std::move(token));
  }
  // The library goes by the text: whatever reads like a special token is one.
  std::unordered_set<std::string_view> special;
  for (const AddedToken& token : tokens) {
    if (token.special) special.insert(token.content);
  }
  for (const AddedToken& token : tokens) {
    const auto at = static_cast<std::size_t>(token.id);
    special_[at] = special.contains(added_text_[at]);
  }
  added_ = AddedTokens(std::move(tokens), forms);
}

std::optional<std::int32_t> JsonTokenizer::role(const std::optional<std::string>& named,
                                                std::span<const std::string_view> usual) const {
  if (named) return id_of(*named);
  for (const std::string_view name : usual) {
    for (const AddedToken& token : added_.all()) {
      if (token.special && token.content == name) return token.id;
    }
  }
  return std::nullopt;
}

const std::string* JsonTokenizer::token_of(std::int32_t id) const {
  const auto at = static_cast<std::size_t>(id);
  if (id >= 0 && at < added_text_.size() && !added_text_[at].empty()) return &added_text_[at];
  return model_->vocabulary().token(id);
}

std::optional<std::int32_t> JsonTokenizer::id_of(std::string_view token) const {
  for (const AddedToken& added : added_.all()) {
    if (added.content == token) return added.id;
  }
  return model_->vocabulary().id_of(token);
}

void JsonTokenizer::encode_text(std::string_view text, std::vector<std::int32_t>& ids) const {
  added_.for_each_segment(text, false, [&](std::size_t begin, std::size_t end, const AddedToken* token) {
    if (token != nullptr) return ids.push_back(token->id);
    if (normalizer_ == nullptr) return encode_piece({text.substr(begin, end - begin), begin == 0}, ids);
    NormalizedText normalized{std::string(text.substr(begin, end - begin)), begin == 0};
    normalizer_->apply(normalized);
    encode_piece({normalized.text, normalized.starts_at_start}, ids);
  });
}

void JsonTokenizer::encode_piece(const Piece& piece, std::vector<std::int32_t>& ids) const {
  const auto words = [&](const Piece& part) {
    pre_tokenizers_.split(part, [&](const Piece& word) { model_->encode(word.text, ids); });
  };
  if (added_.none(true)) {
    if (!piece.text.empty()) words(piece);
    return;
  }
  added_.for_each_segment(piece.text, true, [&](std::size_t begin, std::size_t end, const AddedToken* token) {
    if (token != nullptr) return ids.push_back(token->id);
    words({piece.text.substr(begin, end - begin), piece.starts_at_start && begin == 0});
  });
}

std::string JsonTokenizer::decoded(std::span<const std::int32_t> ids, Special special, Bytes bytes) const {
  std::string text;
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    const auto at = static_cast<std::size_t>(id);
    if (id < 0 || (special == Special::skip && at < special_.size() && special_[at])) continue;
    if (!bytes_.empty()) {
      if (at < bytes_.size()) text += bytes_[at];
    } else if (const std::string* found = token_of(id)) {
      tokens.push_back(*found);
    }
  }
  if (!bytes_.empty()) {
    return bytes == Bytes::replace && first_invalid_utf8(text) ? unicode::with_replacements(text) : text;
  }
  if (decoder_ == nullptr) return fmt::format("{}", fmt::join(tokens, " "));
  decoder_->apply(tokens, bytes);
  for (const std::string& token : tokens) text += token;
  return text;
}

// GPT-2's settings, as its tokenizer.json has them, around its vocabulary and merges.
nlohmann::json gpt2_settings() {
  return parse_json(R"({
    "version": "1.0",
    "added_tokens": [],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE"}})",
                    "the settings of GPT-2");
}

}  // namespace

std::unique_ptr<Tokenizer> make_json_tokenizer(std::string contents, const std::string& label,
                                               const SpecialRoles& roles, std::vector<TokenizerFile> files) {
  const nlohmann::json json = parse_json(contents, label);
  const std::string_view kind = roles.split_special.value_or(false) ? "tokenizer.json, split" : "tokenizer.json";
  const Tokenizer::Fingerprint fingerprint({kind, contents});
  files.insert(files.begin(), {"tokenizer.json", std::move(contents)});
  std::string name = type_of_model(JsonAt(json, label).at("model")) + " " + label;
  return std::make_unique<JsonTokenizer>(json, label, roles, std::move(name), fingerprint, std::move(files));
}

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(std::string vocabulary, const std::string& vocabulary_label,
                                               std::string merges, const std::string& merges_label,
                                               const SpecialRoles& roles, std::vector<TokenizerFile> files) {
  constexpr const char* kEndOfText = "<|endoftext|>";
  nlohmann::json json = gpt2_settings();
  json["model"]["vocab"] = parse_json(vocabulary, vocabulary_label);
  const nlohmann::json& vocab = json["model"]["vocab"];
  if (!vocab.is_object()) fail(Status::corrupt, "{}: must be an object from tokens to ids", vocabulary_label);
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    unicode::append(character, ByteAlphabet::get().code(static_cast<unsigned char>(byte)));
    if (!vocab.contains(character)) {
      fail(Status::unsupported,
           "{}: there is no token for byte {} ({}): not a byte-level vocabulary, and without a tokenizer.json nothing "
           "says how text is to be cut",
           vocabulary_label, byte, shown(character));
    }
  }
  if (const auto at = first_invalid_utf8(merges)) {
    fail(Status::corrupt, "{}: not valid UTF-8 at byte {}", merges_label, *at);
  }
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t begin = 0; begin < merges.size();) {
    std::size_t end = merges.find('\n', begin);
    if (end == std::string::npos) end = merges.size();
    std::string line = merges.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) list.push_back(std::move(line));
    begin = end + 1;
  }
  json["model"]["merges"] = std::move(list);
  SpecialRoles known = roles;
  if (vocab.contains(kEndOfText)) {
    json["added_tokens"].push_back({{"id", vocab[kEndOfText]},
                                    {"content", kEndOfText},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
    if (!known.bos) known.bos = kEndOfText;
    if (!known.eos) known.eos = kEndOfText;
  }
  const Tokenizer::Fingerprint fingerprint({"vocab.json", vocabulary, merges});
  files.insert(files.begin(), {"merges.txt", std::move(merges)});
  files.insert(files.begin(), {"vocab.json", std::move(vocabulary)});
  const std::string label = vocabulary_label + " with " + merges_label;
  return std::make_unique<JsonTokenizer>(json, label, known, "BPE " + label, fingerprint, std::move(files));
}

}  // namespace qdelta
