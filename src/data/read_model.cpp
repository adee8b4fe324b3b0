#include "data/read_model.h"

#include <utility>
#include <vector>

#include "data/bpe_model.h"
#include "data/unigram_model.h"
#include "data/word_models.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

bool given(const JsonAt& json, const char* key) { return json.has(key) && !json.at(key).is_null(); }
bool flag(const JsonAt& json, const char* key) { return given(json, key) && json.at(key).boolean(); }
std::string text_or_empty(const JsonAt& json, const char* key) {
  return given(json, key) ? json.at(key).text() : std::string();
}

std::vector<std::pair<std::string, std::string>> read_merges(const JsonAt& json) {
  std::vector<std::pair<std::string, std::string>> merges;
  if (!json.value().is_array()) json.corrupt("must be an array");
  merges.reserve(json.value().size());
  std::size_t line = 0;
  for (const nlohmann::json& merge : json.value()) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const std::size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        json.corrupt("merge {} is {}, which is not two tokens with one space between", line, shown(text));
      }
      merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else {
      json.corrupt("merge {} must be \"left right\" or [\"left\", \"right\"]", line);
    }
    ++line;
  }
  return merges;
}

std::vector<std::pair<std::string, std::int32_t>> read_vocabulary(const JsonAt& json) {
  if (!json.value().is_object()) json.corrupt("must be an object from tokens to ids");
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;
  vocabulary.reserve(json.value().size());
  for (const auto& [token, id] : json.value().items()) {
    const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() <= static_cast<std::uint64_t>(kLargestId);
    if (!fits) json.corrupt("the id of {} must be a whole number from 0 to {}", shown(token), kLargestId);
    vocabulary.emplace_back(token, id.get<std::int32_t>());
  }
  return vocabulary;
}

std::unique_ptr<TokenModel> read_bpe(const JsonAt& json, bool takes_bytes) {
  json.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
             "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (given(json, "dropout") && !(json.at("dropout").value().is_number() && json.at("dropout").value() == 0.0)) {
    json.at("dropout").unsupported("random merges are not supported; set it to null");
  }
  BpeConfig config;
  if (given(json, "unk_token")) config.unknown = json.at("unk_token").text();
  config.continuing_prefix = text_or_empty(json, "continuing_subword_prefix");
  config.end_suffix = text_or_empty(json, "end_of_word_suffix");
  config.fuse_unknown = flag(json, "fuse_unk");
  config.byte_fallback = flag(json, "byte_fallback");
  config.ignore_merges = flag(json, "ignore_merges");
  config.takes_bytes = takes_bytes;
  config.vocabulary = read_vocabulary(json.at("vocab"));
  config.merges = read_merges(json.at("merges"));
  return json.within([&] { return std::make_unique<BpeModel>(std::move(config)); });
}

// [["<unk>", 0.0], ["a", -2.5]]: the ids count up.
std::unique_ptr<TokenModel> read_unigram(const JsonAt& json) {
  json.only({"type", "unk_id", "vocab", "byte_fallback"});
  UnigramConfig config;
  config.byte_fallback = flag(json, "byte_fallback");
  const JsonAt vocabulary = json.at("vocab");
  if (!vocabulary.value().is_array()) vocabulary.corrupt("must be an array of tokens and their scores");
  for (const nlohmann::json& row : vocabulary.value()) {
    const bool fits = row.is_array() && row.size() == 2 && row[0].is_string() && row[1].is_number();
    if (!fits) vocabulary.corrupt("token {} must be [\"text\", score]", config.tokens.size());
    config.tokens.push_back(row[0].get<std::string>());
    config.scores.push_back(row[1].is_number_float() ? twice_rounded(row[1].get<double>()) : row[1].get<double>());
  }
  if (given(json, "unk_id")) config.unknown = static_cast<std::int32_t>(json.at("unk_id").integer(0, kLargestId));
  return json.within([&] { return std::make_unique<UnigramModel>(std::move(config)); });
}

std::unique_ptr<TokenModel> read_word_piece(const JsonAt& json) {
  json.only({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPieceConfig config;
  config.unknown = json.at("unk_token").text();
  config.continuing_prefix = json.at("continuing_subword_prefix").text();
  config.longest_word = static_cast<std::uint64_t>(
      json.at("max_input_chars_per_word").integer(0, std::numeric_limits<std::int64_t>::max()));
  config.vocabulary = read_vocabulary(json.at("vocab"));
  return json.within([&] { return std::make_unique<WordPieceModel>(std::move(config)); });
}

std::unique_ptr<TokenModel> read_word_level(const JsonAt& json) {
  json.only({"type", "unk_token", "vocab"});
  std::string unknown = json.at("unk_token").text();
  auto vocabulary = read_vocabulary(json.at("vocab"));
  return json.within([&] { return std::make_unique<WordLevelModel>(std::move(vocabulary), std::move(unknown)); });
}

}  // namespace

std::string type_of_model(const JsonAt& model) {
  if (model.has("type")) return model.at("type").text();
  if (model.has("merges")) return "BPE";
  if (model.has("max_input_chars_per_word")) return "WordPiece";
  return model.has("unk_token") ? "WordLevel" : "Unigram";
}

bool may_take_bytes(const JsonAt& model) {
  return type_of_model(model) == "BPE" && text_or_empty(model, "continuing_subword_prefix").empty() &&
         text_or_empty(model, "end_of_word_suffix").empty();
}

std::unique_ptr<TokenModel> read_model(const JsonAt& model, bool takes_bytes) {
  const std::string type = type_of_model(model);
  if (type == "BPE") return read_bpe(model, takes_bytes);
  if (type == "Unigram") return read_unigram(model);
  if (type == "WordPiece") return read_word_piece(model);
  if (type == "WordLevel") return read_word_level(model);
  model.unsupported("the model {} is not supported; those that are: BPE, Unigram, WordPiece, WordLevel", shown(type));
}

}  // namespace qdelta
