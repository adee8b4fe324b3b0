#include "data/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>

#include "core/error.h"
#include "data/bpe_model.h"
#include "data/sentencepiece_model.h"
#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr std::string_view kSpacePiece = "\xe2\x96\x81";  // U+2581, which stands for a space
constexpr std::size_t kLongest = std::size_t{1} << 30U;   // bytes at once; the library counts in 32 bits

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string contents, const std::string& label, const SpecialRoles& roles,
                         std::vector<TokenizerFile> files, SentencePieceEncoder encoder);

  [[nodiscard]] std::string token(std::int32_t id) const override { return known(id) ? model_.IdToPiece(id) : ""; }
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
    const int id = model_.PieceToId(token);
    if (model_.IdToPiece(id) != token) return std::nullopt;  // else the unknown token's
    return id;
  }

 private:
  [[nodiscard]] bool known(std::int32_t id) const { return id >= 0 && id < model_.GetPieceSize(); }
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const override;
  void encode_by_library(std::string_view text, std::vector<std::int32_t>& ids) const;
  // Null where the model is not plain BPE.
  [[nodiscard]] std::unique_ptr<BpeModel> as_bpe() const;
  std::string decode_text(std::span<const std::int32_t> ids, Special special) const override;
  std::string decode_raw(std::span<const std::int32_t> ids, Special special) const override;

  sentencepiece::SentencePieceProcessor model_;
  SentencePieceModel settings_;
  std::unique_ptr<BpeModel> bpe_;
  std::string unknown_surface_;  // what the library writes for what it did not know
};

SentencePieceTokenizer::SentencePieceTokenizer(std::string contents, const std::string& label,
                                               const SpecialRoles& roles, std::vector<TokenizerFile> files,
                                               SentencePieceEncoder encoder) {
  const auto settings = read_sentencepiece_model(contents);
  if (!settings) fail(Status::corrupt, "{}: not a SentencePiece model (or one that is cut short)", label);
  settings_ = *settings;
  const auto status = model_.LoadFromSerializedProto(contents);
  if (!status.ok()) fail(Status::corrupt, "{}: not a usable SentencePiece model: {}", label, status.ToString());

  if (encoder == SentencePieceEncoder::fastest) bpe_ = as_bpe();
  if (model_.unk_id() >= 0) {
    const auto decoded = model_.Decode(std::vector<int>{model_.unk_id()}, &unknown_surface_);
    if (!decoded.ok()) fail(Status::corrupt, "{}: cannot decode the unknown token: {}", label, decoded.ToString());
  }

  Traits traits;
  traits.name = "sentencepiece " + label;
  traits.vocab_size = model_.GetPieceSize();
  const auto role = [&](const std::optional<std::string>& token, int by_model) -> std::optional<std::int32_t> {
    if (token && id_of(*token)) return id_of(*token);
    if (by_model >= 0) return by_model;
    return std::nullopt;
  };
  traits.bos = role(roles.bos, model_.bos_id());
  traits.eos = role(roles.eos, model_.eos_id());
  traits.pad = role(roles.pad, model_.pad_id());
  if (traits.bos && roles.add_bos.value_or(true)) traits.prefix = {*traits.bos};
  if (traits.eos && roles.add_eos.value_or(false)) traits.suffix = {*traits.eos};
  traits.fingerprint = Fingerprint({"sentencepiece", contents});
  traits.files = std::move(files);
  traits.files.insert(traits.files.begin(), {"tokenizer.model", std::move(contents)});
  set_traits(std::move(traits));
}

std::unique_ptr<BpeModel> SentencePieceTokenizer::as_bpe() const {
  const bool plain = settings_.byte_pair_encoding && settings_.identity_normalizer && settings_.add_dummy_prefix &&
                     !settings_.remove_extra_whitespaces && settings_.escape_whitespaces &&
                     !settings_.whitespace_as_suffix && !settings_.user_defined_pieces;
  if (!plain || model_.unk_id() < 0) return nullptr;
  // Only normal pieces take part in merges.
  std::unordered_map<std::string_view, int> normal;
  std::set<float, std::greater<>> scores;
  BpeConfig config;
  for (int id = 0; id < model_.GetPieceSize(); ++id) {
    if (model_.IsUnused(id)) return nullptr;
    if (model_.IsControl(id)) continue;
    const std::string& piece = model_.IdToPiece(id);
    config.vocabulary.emplace_back(piece, id);
    if (model_.IsByte(id)) config.byte_fallback = true;
    if (model_.IsByte(id) || model_.IsUnknown(id)) continue;
    normal.emplace(piece, id);
    scores.insert(model_.GetScore(id));
  }
  if (!normal.contains(kSpacePiece)) return nullptr;
  const std::vector<float> in_order(scores.begin(), scores.end());
  for (const auto& [piece, id] : normal) {
    const auto rank = std::lower_bound(in_order.begin(), in_order.end(), model_.GetScore(id), std::greater<>());
    for (std::size_t cut = 0; cut < piece.size();) {
      // The library starts from the characters, whether they are pieces or not; ours from pieces.
      const std::size_t length = unicode::character_at(piece.data() + cut).length;
      if (!normal.contains(piece.substr(cut, length))) return nullptr;
      cut += length;
      if (cut == piece.size()) break;
      const std::string_view left = piece.substr(0, cut);
      const std::string_view right = piece.substr(cut);
      if (!normal.contains(left) || !normal.contains(right)) continue;
      config.merges.emplace_back(left, right);
      config.ranks.push_back(static_cast<std::int32_t>(rank - in_order.begin()));
    }
  }
  config.unknown = model_.IdToPiece(model_.unk_id());
  config.fuse_unknown = true;
  return std::make_unique<BpeModel>(std::move(config));
}

void SentencePieceTokenizer::encode_text(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (bpe_ == nullptr) return encode_by_library(text, ids);
  if (text.empty()) return;
  std::string spaced(kSpacePiece);
  spaced.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      spaced += kSpacePiece;
    } else {
      spaced += c;
    }
  }
  bpe_->encode(spaced, ids);
}

void SentencePieceTokenizer::encode_by_library(std::string_view text, std::vector<std::int32_t>& ids) const {
  require(text.size() <= kLongest, "SentencePiece cannot take a text of {} bytes at once; at most {}", text.size(),
          kLongest);
  std::vector<int> found;
  const auto status = model_.Encode(text, &found);
  if (!status.ok()) fail(Status::internal, "SentencePiece cannot encode: {}", status.ToString());
  ids.insert(ids.end(), found.begin(), found.end());
}

std::string SentencePieceTokenizer::decode_text(std::span<const std::int32_t> ids, Special special) const {
  if (special == Special::keep) return unicode::with_replacements(decode_raw(ids, special));
  std::vector<int> given;
  given.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (known(id)) given.push_back(id);
  }
  std::string text;
  const auto status = model_.Decode(given, &text);
  if (!status.ok()) fail(Status::internal, "SentencePiece cannot decode: {}", status.ToString());
  return first_invalid_utf8(text) ? unicode::with_replacements(text) : text;
}

std::string SentencePieceTokenizer::decode_raw(std::span<const std::int32_t> ids, Special special) const {
  if (!settings_.identity_denormalizer || settings_.whitespace_as_suffix) return decode_text(ids, Special::skip);
  std::string text;
  bool first = true;  // no piece has been written
  for (const std::int32_t id : ids) {
    if (!known(id)) continue;
    if (model_.IsControl(id)) {
      if (special == Special::keep) text += model_.IdToPiece(id);
      continue;
    }
    if (model_.IsUnknown(id)) {
      text += unknown_surface_;
    } else if (model_.IsByte(id)) {
      text += static_cast<char>(std::stoi(model_.IdToPiece(id).substr(3, 2), nullptr, 16));
    } else {
      std::string_view piece = model_.IdToPiece(id);
      // The space that was put in front is taken away again.
      const bool at_front = settings_.remove_extra_whitespaces ? text.empty() : first && settings_.add_dummy_prefix;
      if (at_front && piece.starts_with(kSpacePiece)) {
        piece.remove_prefix(kSpacePiece.size());
      }
      while (!piece.empty()) {
        const std::size_t at = piece.find(kSpacePiece);
        text += piece.substr(0, at);
        if (at == std::string_view::npos) break;
        text += ' ';
        piece.remove_prefix(at + kSpacePiece.size());
      }
    }
    first = false;
  }
  return text;
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string contents, const std::string& label,
                                                        const SpecialRoles& roles, std::vector<TokenizerFile> files,
                                                        SentencePieceEncoder encoder) {
  return std::make_unique<SentencePieceTokenizer>(std::move(contents), label, roles, std::move(files), encoder);
}

}  // namespace qdelta
