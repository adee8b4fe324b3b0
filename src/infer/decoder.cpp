#include "infer/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace qdelta {

Decoder::Decoder(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, ModelStates& states,
                 const DecoderOptions& options)
    : model_(model),
      device_(states.device()),
      states_(states),
      sequences_(static_cast<std::size_t>(states.count())),
      sampler_(device_, states.count(), model.config().vocab_size),
      reader_(model, weights, states),
      step_(model, weights, states, sampler_, std::min(options.max_rows, states.count()), options.recent_tokens),
      log_probabilities_(device_) {}

void Decoder::add(std::int64_t slot, Sequence& sequence) {
  require(slot >= 0 && slot < static_cast<std::int64_t>(sequences_.size()), "there is no slot {} in a pool of {}", slot,
          sequences_.size());
  require(at(slot) == nullptr, "slot {} has a sequence already", slot);
  const GenerationOptions& options = sequence.options();
  SamplingState state{.options = options.sampling, .stream = options.stream, .draws = sequence.generated().size()};
  if (options.min_tokens > 0) {
    const std::vector<std::int32_t> ends = sequence.end_tokens();
    require(ends.size() <= state.ends.size(), "min_tokens with {} tokens that end a sequence, expected at most {}",
            ends.size(), state.ends.size());
    std::ranges::copy(ends, state.ends.begin());
    state.first_end = static_cast<std::uint64_t>(options.min_tokens);
  }
  sampler_.start(slot, state, sequence.tokens(), options.bias);
  sequences_[static_cast<std::size_t>(slot)] = &sequence;
}

void Decoder::remove(std::int64_t slot) {
  sequences_[static_cast<std::size_t>(slot)] = nullptr;
  step_.forget(slot);
  std::erase_if(followers_, [slot](const auto& pair) { return pair.first == slot || pair.second == slot; });
}

void Decoder::follow(std::int64_t slot, std::int64_t leader) {
  require(at(slot) != nullptr && at(leader) != nullptr && at(leader)->reading(), "slot {} has no prompt to follow",
          leader);
  require(std::ranges::equal(at(slot)->prompt(), at(leader)->prompt()), "slots {} and {} have different prompts", slot,
          leader);
  followers_.emplace(leader, slot);
}

void Decoder::read(std::span<const std::int64_t> slots) {
  // A CPU has work enough with one prompt. How its products round depends on how many rows they have, so each is read
  // as it would be alone.
  if (device_.gpu == nullptr && slots.size() > 1) {
    for (const std::int64_t& slot : slots) read({&slot, 1});
    return;
  }
  std::vector<PromptPiece> pieces;
  std::int64_t top = 1;
  for (const std::int64_t slot : slots) {
    require(at(slot) != nullptr && at(slot)->reading(), "slot {} has no prompt to read", slot);
    pieces.push_back(at(slot)->next_piece(slot, prompt_piece(device_)));
    if (at(slot)->options().score_prompt) top = std::max(top, at(slot)->options().logprobs);
  }
  if (pieces.empty()) return;
  const auto scores = reader_.read(pieces, std::min(top, model_.config().vocab_size));
  std::vector<std::size_t> ended;
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    take_piece(slots[n], pieces[n], scores[n]);
    if (at(slots[n])->generating()) ended.push_back(n);
  }
  if (!ended.empty()) sample_first(std::move(ended), slots);
}

void Decoder::take_piece(std::int64_t slot, const PromptPiece& piece, std::span<const TokenScore> scores) {
  Sequence& sequence = *at(slot);
  if (piece.end == sequence.tokens_to_read()) {
    const auto [begin, end] = followers_.equal_range(slot);
    for (auto each = begin; each != end; ++each) {
      states_.copy(states_, slot, each->second);
      at(each->second)->fork(sequence);
      at(each->second)->read(piece, scores);
    }
  }
  sequence.read(piece, scores);
}

void Decoder::sample_first(std::vector<std::size_t> pieces, std::span<const std::int64_t> slots) {
  std::stable_partition(pieces.begin(), pieces.end(), [&](std::size_t piece) { return wants_score(slots[piece]); });
  std::vector<std::int64_t> sampled;
  for (const std::size_t piece : pieces) sampled.push_back(slots[piece]);
  const TensorView logits = reader_.logits_after(pieces);
  sample(logits, sampled);
  for (std::size_t row = 0; row < sampled.size(); ++row) {
    TensorView one = logits;
    one.data += static_cast<std::int64_t>(row) * logits.step(0) * static_cast<std::int64_t>(sizeof(float));
    one.shape = {1, logits.extent(1)};
    const auto [begin, end] = followers_.equal_range(sampled[row]);
    for (auto each = begin; each != end; ++each) sample(one, {&each->second, 1});
    followers_.erase(begin, end);
  }
}

void Decoder::sample(const TensorView& logits, std::span<const std::int64_t> slots) {
  std::vector<std::int32_t> tokens(slots.size());
  first_slots_.grow(device_, slots.size_bytes());
  first_tokens_.grow(device_, tokens.size() * sizeof(std::int32_t));
  upload(device_, first_slots_.data(), slots.data(), slots.size_bytes());
  sampler_.sample(logits, {reinterpret_cast<const std::int64_t*>(first_slots_.data()), slots.size()},
                  {reinterpret_cast<std::int32_t*>(first_tokens_.data()), tokens.size()});
  download(device_, tokens.data(), first_tokens_.data(), tokens.size() * sizeof(std::int32_t));
  append(slots, tokens, logits);
}

std::size_t Decoder::step() {
  const std::size_t count = launch_step();
  finish_step();
  return count;
}

std::size_t Decoder::launch_step() {
  require(step_slots_.empty(), "a step has been launched and not finished");
  std::vector<std::int64_t> slots;
  for (std::size_t slot = 0; slot < sequences_.size(); ++slot) {
    if (sequences_[slot] != nullptr && sequences_[slot]->generating()) slots.push_back(static_cast<std::int64_t>(slot));
  }
  std::stable_partition(slots.begin(), slots.end(), [this](std::int64_t slot) { return wants_score(slot); });
  // More sequences than a step takes: all groups but the last are done here.
  for (std::size_t begin = 0; begin < slots.size(); begin += step_.max_rows()) {
    finish_step();
    const std::size_t rows = std::min(step_.max_rows(), slots.size() - begin);
    const auto first = slots.begin() + static_cast<std::ptrdiff_t>(begin);
    std::vector<std::int64_t> group(first, first + static_cast<std::ptrdiff_t>(rows));
    step_tokens_.clear();
    for (const std::int64_t slot : group) step_tokens_.push_back(at(slot)->tokens().back());
    step_.launch(group, step_tokens_);
    step_slots_ = std::move(group);
  }
  return slots.size();
}

void Decoder::finish_step() {
  if (step_slots_.empty()) return;
  const std::vector<std::int64_t> slots = std::exchange(step_slots_, {});
  step_.collect(step_tokens_);
  append(slots, step_tokens_, step_.logits());
}

void Decoder::append(std::span<const std::int64_t> slots, std::span<const std::int32_t> tokens,
                     const TensorView& logits) {
  std::size_t scored = 0;
  std::int64_t top = 1;
  for (; scored < slots.size() && wants_score(slots[scored]); ++scored) {
    top = std::max(top, at(slots[scored])->options().logprobs);
  }
  if (scored > 0) {
    TensorView rows = logits;
    rows.shape = {static_cast<std::int64_t>(scored), logits.extent(1)};
    log_probabilities_.compute(rows, scores_.prepare(tokens.first(scored), std::min(top, logits.extent(1))));
  }
  for (std::size_t row = 0; row < slots.size(); ++row) {
    Sequence& sequence = *at(slots[row]);
    std::optional<TokenScore> score;
    if (row < scored) score = scores_.at(row);
    if (tokens[row] < 0 || (score && !score->finite())) {
      sequence.fail();
    } else {
      sequence.append(tokens[row], score ? &*score : nullptr);
    }
  }
}

std::vector<float> Decoder::read_tokens(std::span<const std::int32_t> tokens, std::int64_t slot) {
  require(!tokens.empty(), "there is nothing to read: the prompt has no tokens");
  const std::size_t most = prompt_piece(device_);
  for (std::size_t begin = 0; begin < tokens.size(); begin += most) {
    const std::size_t end = std::min(begin + most, tokens.size());
    const PromptPiece piece{.prompt = tokens, .begin = begin, .end = end, .slot = slot};
    read_piece(piece);
  }
  const std::size_t only = 0;
  const TensorView logits = reader_.logits_after({&only, 1});
  std::vector<float> host(static_cast<std::size_t>(logits.shape.elements()));
  download(device_, host.data(), logits.data, host.size() * sizeof(float));
  return host;
}

}  // namespace qdelta
