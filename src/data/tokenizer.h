// Tokenizers: from text to ids and back.
//
//   bytes             a byte is an id; 256 starts and 257 ends a text
//   X.model           SentencePiece (sentencepiece_tokenizer.h)
//   tokenizer.json    as Hugging Face writes it (json_tokenizer.h)
//   vocab.json        the same in two files, with merges.txt beside it (also encoder.json and vocab.bpe)
//   a folder          that holds one of these
//
// A text that is not valid UTF-8 has U+FFFD in the place of what is not, before it is encoded; only "bytes" takes every
// byte as it is. Decoded text is always valid UTF-8.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qdelta {

// A file that a checkpoint must hold for the tokenizer to be found again.
struct TokenizerFile {
  std::string name;
  std::string contents;
};

class Tokenizer {
 public:
  enum class Special { skip, keep };

  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // All of these may be called from several threads at once.

  // The ids of a text, nothing added. A special token that is spelled out in it is recognised where the tokenizer's
  // files say so (tokenizer.json: yes, without "split_special_tokens" beside it; SentencePiece: no).
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;
  // With what the tokenizer's own files put before and after a text.
  [[nodiscard]] std::vector<std::int32_t> encode_with_special(std::string_view text) const;
  // The text of ids. Special tokens give nothing unless they are kept; ids that no token has give nothing.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, Special special = Special::skip) const;
  // The same without U+FFFD for bytes that are not UTF-8: for those who put a text together in pieces (TokenStream).
  [[nodiscard]] std::string decode_bytes(std::span<const std::int32_t> ids, Special special = Special::skip) const;

  // The token as the vocabulary spells it; empty if there is none.
  [[nodiscard]] virtual std::string token(std::int32_t id) const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;

  // One more than the largest id, so that a model needs as many rows.
  [[nodiscard]] std::int32_t vocab_size() const { return traits_.vocab_size; }
  [[nodiscard]] std::optional<std::int32_t> bos() const { return traits_.bos; }
  [[nodiscard]] std::optional<std::int32_t> eos() const { return traits_.eos; }
  [[nodiscard]] std::optional<std::int32_t> pad() const { return traits_.pad; }
  // What encode_with_special adds.
  [[nodiscard]] std::span<const std::int32_t> prefix() const { return traits_.prefix; }
  [[nodiscard]] std::span<const std::int32_t> suffix() const { return traits_.suffix; }
  // For people: what it is and where it came from.
  [[nodiscard]] const std::string& name() const { return traits_.name; }
  // Hashes of the contents of the files that make the ids.
  struct Fingerprint {
    Fingerprint() = default;
    Fingerprint(std::initializer_list<std::string_view> contents);

    std::uint64_t present = 0, version1 = 0;
  };
  // Shards remember it, so that a model is not trained on the ids of another tokenizer.
  [[nodiscard]] std::uint64_t fingerprint() const { return traits_.fingerprint.present; }
  // What it was in shards of version 1.
  [[nodiscard]] std::uint64_t fingerprint_v1() const { return traits_.fingerprint.version1; }
  [[nodiscard]] const std::vector<TokenizerFile>& files() const { return traits_.files; }

 protected:
  struct Traits {
    std::string name;
    std::int32_t vocab_size = 0;
    std::optional<std::int32_t> bos, eos, pad;
    std::vector<std::int32_t> prefix, suffix;
    Fingerprint fingerprint;
    std::vector<TokenizerFile> files;
  };
  Tokenizer() = default;
  void set_traits(Traits traits) { traits_ = std::move(traits); }

 private:
  // Of valid UTF-8, unless takes_any_bytes(). Appends.
  virtual void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  virtual std::string decode_text(std::span<const std::int32_t> ids, Special special) const = 0;
  virtual std::string decode_raw(std::span<const std::int32_t> ids, Special special) const = 0;
  [[nodiscard]] virtual bool takes_any_bytes() const { return false; }

  Traits traits_;
};

// Throws Error(io) when a file cannot be read, Error(corrupt) when it is not what it should be, Error(unsupported) when
// it asks for something that we do not know (never ids that would be wrong), Error(invalid_argument) when `spec`
// names nothing that could be a tokenizer.
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec);

// Writes into a folder, which must exist, what load_tokenizer(folder) needs to find the same tokenizer again.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

// Turns ids into text one by one, for a text that is being generated: every piece is valid UTF-8, and together they
// are what decode() makes of all the ids (up to the number of U+FFFD where the bytes are no text).
class TokenStream {
 public:
  explicit TokenStream(const Tokenizer& tokenizer, Tokenizer::Special special = Tokenizer::Special::skip)
      : tokenizer_(tokenizer), special_(special) {}

  // The text that this id completes; empty while a character is not whole.
  [[nodiscard]] std::string push(std::int32_t id);
  // What is left: U+FFFD if the ids ended inside a character. Then ready for another text.
  [[nodiscard]] std::string finish();

 private:
  const Tokenizer& tokenizer_;
  Tokenizer::Special special_;
  std::vector<std::int32_t> context_;  // the ids before that decide how the next one reads
  std::string context_text_;           // of them
  std::string held_;                   // the start of a character
};

}  // namespace qdelta
