// The pre-tokenizers of tokenizer.json: how a text is cut into words, none of which a token ever crosses.
#pragma once

#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "data/checked_json.h"

namespace qdelta {

struct Piece {
  std::string_view text;
  bool starts_at_start;  // of the whole input
};

// Something to call with each piece, without owning it.
class PieceSink {
 public:
  template <class Function, class = std::enable_if_t<!std::is_same_v<std::decay_t<Function>, PieceSink>>>
  PieceSink(const Function& function)  // NOLINT(google-explicit-constructor): a lambda is passed as it is
      : object_(&function),
        call_([](const void* object, const Piece& piece) { (*static_cast<const Function*>(object))(piece); }) {}
  void operator()(const Piece& piece) const { call_(object_, piece); }

 private:
  const void* object_;
  void (*call_)(const void*, const Piece&);
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  virtual ~PreTokenizer() = default;
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // Hands on pieces that are not empty; their text is valid during the call only. Several threads may call it at once.
  virtual void split(const Piece& piece, const PieceSink& sink) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  // The last step is ByteLevel, and leaves it to the model to see the bytes as characters.
  bool model_takes_bytes = false;

  // Throws Error(unsupported) where the steps make the text unreasonably long (pipeline_limits.h).
  void split(const Piece& piece, const PieceSink& sink) const;

 private:
  // By the steps from `first` on, which may hand on `left` bytes among themselves.
  void split_from(std::size_t first, const Piece& piece, const PieceSink& sink, std::size_t& left) const;
};

// No steps for a JSON null. Throws Error(unsupported) for one or a setting that is not known, Error(corrupt).
// Unless the model may take bytes, it gets GPT-2's alphabet from ByteLevel.
[[nodiscard]] PreTokenizers make_pre_tokenizers(const JsonAt& json, bool model_may_take_bytes);

}  // namespace qdelta
