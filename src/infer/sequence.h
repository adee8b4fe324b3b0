// A sequence: a prompt, what has been read of it, and what is generated after it. It knows tokens, not the model: a
// Decoder reads its prompt and gives it tokens, and whoever owns it takes the updates. Their text is another matter
// (sequence_text.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "infer/prompt_reader.h"
#include "infer/sampler.h"
#include "infer/token_score.h"
#include "kernels/sampling.h"

namespace qdelta {

struct GenerationOptions {
  SamplingOptions sampling = {};
  std::uint64_t stream = 0;            // separates the random numbers of sequences that have the same seed
  std::vector<TokenBias> bias = {};    // added to logits
  std::int64_t min_tokens = 0;         // before so many the end-of-text token and stop tokens are not drawn
  std::int64_t max_tokens = 128;       // 0: the prompt is read up to its last token, and nothing is generated
  std::vector<std::string> stop = {};  // text that ends the sequence, itself left out
  bool stop_at_eos = true;
  std::vector<std::int32_t> stop_tokens = {};  // that end the sequence, themselves without text
  std::int64_t logprobs = -1;  // so many of the most likely tokens with each token's score; -1: no scores
  bool score_prompt = false;   // scores for the prompt's tokens too
};

enum class EndReason { none, length, eos, stop_token, stop_string, not_finite };

// A token with its score, where it was asked for and there is one: the first token of a prompt has none.
struct ScoredToken {
  std::int32_t token = 0;
  std::optional<float> log_probability;
  std::vector<TokenChance> top;  // the most likely first
  bool ends_sequence = false;    // the end-of-text token or a stop token: it has no text
};

// What is new.
struct SequenceUpdate {
  std::vector<ScoredToken> prompt;  // once, where asked for, before all else
  std::vector<ScoredToken> generated;
  EndReason end = EndReason::none;
};

class Sequence {
 public:
  // The prompt must not be empty.
  Sequence(const Tokenizer& tokenizer, std::vector<std::int32_t> prompt, GenerationOptions options);

  [[nodiscard]] const GenerationOptions& options() const { return options_; }
  // The prompt and what was generated.
  [[nodiscard]] std::span<const std::int32_t> tokens() const { return tokens_; }
  [[nodiscard]] std::span<const std::int32_t> prompt() const { return tokens().first(prompt_size_); }
  [[nodiscard]] std::span<const std::int32_t> generated() const { return tokens().subspan(prompt_size_); }

  // Tokens that end it wherever they come.
  [[nodiscard]] std::vector<std::int32_t> end_tokens() const;

  // Exactly one of these holds.
  [[nodiscard]] bool reading() const { return !done() && read_ < to_read_; }
  [[nodiscard]] bool generating() const { return !done() && read_ == to_read_; }
  [[nodiscard]] bool done() const { return end_ != EndReason::none; }
  [[nodiscard]] EndReason end() const { return end_; }

  // So many tokens of the prompt have been read before, into the state that it continues.
  void skip(std::size_t tokens);
  // The state of another sequence, whose prompt begins alike, has been copied: all that it has read counts here too,
  // with its scores.
  void fork(const Sequence& other);
  // A piece of the prompt ends after so many tokens, whatever comes before and behind.
  void cut(std::size_t tokens) { cuts_.insert(tokens); }
  [[nodiscard]] std::size_t tokens_read() const { return read_; }
  [[nodiscard]] std::size_t tokens_to_read() const { return to_read_; }
  // The piece of the prompt to read next, at most so many tokens, and then what came of reading it.
  [[nodiscard]] PromptPiece next_piece(std::int64_t slot, std::size_t tokens) const;
  void read(const PromptPiece& piece, std::span<const TokenScore> scores);

  // The next token has been sampled; `score` where options().logprobs asks for one.
  void append(std::int32_t token, const TokenScore* score = nullptr);
  // The model's output is not finite: the sequence cannot go on.
  void fail();
  // A stop string has been found in its text. Tokens that were generated meanwhile are nobody's.
  void stop() { end_ = EndReason::stop_string; }

  // What has come since the last call, in order.
  [[nodiscard]] std::vector<SequenceUpdate> take_updates();

 private:
  [[nodiscard]] ScoredToken scored(std::int32_t token, const TokenScore* score) const;
  void prompt_has_been_read();
  GenerationOptions options_;
  std::vector<std::int32_t> tokens_;
  std::size_t prompt_size_, to_read_, read_ = 0;
  std::optional<std::int32_t> eos_;
  EndReason end_ = EndReason::none;
  std::set<std::size_t> cuts_;
  std::vector<ScoredToken> prompt_scores_;
  std::vector<SequenceUpdate> updates_;
};

}  // namespace qdelta
