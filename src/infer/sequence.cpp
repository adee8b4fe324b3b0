#include "infer/sequence.h"

#include <algorithm>
#include <utility>

namespace qdelta {
namespace {

std::vector<std::int32_t> not_empty(std::vector<std::int32_t> prompt) {
  require(!prompt.empty(), "there is nothing to read: the prompt has no tokens");
  return prompt;
}

}  // namespace

Sequence::Sequence(const Tokenizer& tokenizer, std::vector<std::int32_t> prompt, GenerationOptions options)
    : options_(std::move(options)),
      tokens_(not_empty(std::move(prompt))),
      prompt_size_(tokens_.size()),
      // Nothing is generated after the last token, so that its own score is the last thing wanted.
      to_read_(options_.max_tokens == 0 ? prompt_size_ - 1 : prompt_size_),
      eos_(options_.stop_at_eos ? tokenizer.eos() : std::nullopt) {
  if (options_.score_prompt) prompt_scores_.push_back(scored(tokens_.front(), nullptr));
  if (to_read_ == 0) prompt_has_been_read();
}

std::vector<std::int32_t> Sequence::end_tokens() const {
  std::vector<std::int32_t> tokens = options_.stop_tokens;
  if (eos_) tokens.push_back(*eos_);
  return tokens;
}

PromptPiece Sequence::next_piece(std::int64_t slot, std::size_t tokens) const {
  const auto cut = cuts_.upper_bound(read_);
  const std::size_t end = std::min({read_ + tokens, to_read_, cut == cuts_.end() ? to_read_ : *cut});
  // What follows the prompt's last token is not a token of the prompt.
  const std::size_t score_end = options_.score_prompt ? std::min(end, prompt_size_ - 1) : read_;
  return {.prompt = prompt(), .begin = read_, .end = end, .score_begin = read_, .score_end = score_end, .slot = slot};
}

void Sequence::read(const PromptPiece& piece, std::span<const TokenScore> scores) {
  if (!std::all_of(scores.begin(), scores.end(), [](const TokenScore& score) { return score.finite(); })) return fail();
  for (const TokenScore& score : scores) prompt_scores_.push_back(scored(score.token.token, &score));
  read_ = piece.end;
  if (read_ == to_read_) prompt_has_been_read();
}

void Sequence::skip(std::size_t tokens) {
  read_ = tokens;
  if (read_ == to_read_) prompt_has_been_read();
}

void Sequence::fork(const Sequence& other) {
  read_ = other.read_;
  if (options_.score_prompt) prompt_scores_ = other.prompt_scores_;
  if (read_ == to_read_) prompt_has_been_read();
}

void Sequence::prompt_has_been_read() {
  if (prompt_scores_.empty() && options_.max_tokens > 0) return;
  updates_.push_back({.prompt = std::exchange(prompt_scores_, {}), .generated = {}});
  if (options_.max_tokens > 0) return;
  end_ = updates_.back().end = EndReason::length;
}

void Sequence::append(std::int32_t token, const TokenScore* score) {
  tokens_.push_back(token);
  updates_.push_back({.prompt = {}, .generated = {scored(token, score)}});
  const auto& stops = options_.stop_tokens;
  if (eos_ && token == *eos_) {
    end_ = EndReason::eos;
  } else if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    end_ = EndReason::stop_token;
  } else if (static_cast<std::int64_t>(generated().size()) >= options_.max_tokens) {
    end_ = EndReason::length;
  }
  updates_.back().generated.back().ends_sequence = end_ == EndReason::eos || end_ == EndReason::stop_token;
  updates_.back().end = end_;
}

void Sequence::fail() {
  updates_.push_back({});
  end_ = updates_.back().end = EndReason::not_finite;
}

ScoredToken Sequence::scored(std::int32_t token, const TokenScore* score) const {
  ScoredToken result{.token = token, .log_probability = std::nullopt, .top = {}, .ends_sequence = false};
  if (score == nullptr) return result;
  result.log_probability = score->token.log_probability;
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(options_.logprobs, 0));
  if (wanted > 0 && score->top.empty()) result.top.push_back(score->best);
  const auto end = score->top.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, score->top.size()));
  result.top.insert(result.top.end(), score->top.begin(), end);
  return result;
}

std::vector<SequenceUpdate> Sequence::take_updates() { return std::exchange(updates_, {}); }

}  // namespace qdelta
