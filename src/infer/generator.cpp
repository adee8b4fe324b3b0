#include "infer/generator.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "infer/device_decoder.h"
#include "infer/held_text.h"
#include "infer/prompt.h"

namespace qdelta {
namespace {

// Tokens of a prompt that are read at a time: enough for matrix products to run well, so few that memory stays small.
constexpr std::size_t kPrefillTokens = 512;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

// A sequence while it is being generated.
class Generator::Sequence {
 public:
  Sequence(const Tokenizer& tokenizer, const GenerationOptions& options, std::size_t index,
           std::span<const std::int32_t> prompt)
      : stream_(stream_behind(tokenizer, prompt)),
        sampler_(options.sampling, index),
        max_tokens_(options.max_tokens),
        eos_(options.stop_at_eos ? tokenizer.eos() : std::nullopt),
        seen_(prompt.begin(), prompt.end()),
        held_(options.stop) {}

  // Chooses the next token, or takes one that was chosen; gives the text that is now certain.
  std::string advance(std::span<const float> logits) { return advance(sampler_.next(logits, seen_)); }
  std::string advance(std::int32_t token) {
    seen_.push_back(token);
    result_.tokens.push_back(token);
    if (eos_ && token == *eos_) return finish(Generated::End::eos);
    std::string text = held_.push(stream_.push(token));
    result_.text += text;
    if (held_.stopped()) {
      result_.end = Generated::End::stop;
      done_ = true;
    } else if (static_cast<std::int64_t>(result_.tokens.size()) >= max_tokens_) {
      text += finish(Generated::End::length);
    }
    return text;
  }
  [[nodiscard]] bool done() const { return done_; }
  [[nodiscard]] std::int32_t last() const { return seen_.back(); }
  [[nodiscard]] const std::vector<std::int32_t>& seen() const { return seen_; }
  Generated take() { return std::move(result_); }

 private:
  std::string finish(Generated::End end) {
    result_.end = end;
    done_ = true;
    std::string rest = held_.finish() + stream_.finish();
    result_.text += rest;
    return rest;
  }

  TokenStream stream_;
  Sampler sampler_;
  std::int64_t max_tokens_;
  std::optional<std::int32_t> eos_;
  std::vector<std::int32_t> seen_;
  HeldText held_;
  Generated result_;
  bool done_ = false;
};

Generator::Generator(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device)
    : Generator(model, tokenizer, std::make_shared<DeviceWeights>(model, device), device) {}

Generator::Generator(const LanguageModel& model, const Tokenizer& tokenizer,
                     std::shared_ptr<const DeviceWeights> weights, const Device& device)
    : model_(model), tokenizer_(tokenizer), device_(device), runner_(model, std::move(weights), device, false) {}

std::vector<float> Generator::read(std::span<const std::int32_t> tokens, ModelStates& states, std::int64_t slot) {
  require(!tokens.empty(), "there is nothing to read: the prompt has no tokens");
  const auto start = Clock::now();
  Tensor logits(DType::f32, {1, model_.config().vocab_size});
  const std::vector<std::int64_t> slots{slot};
  for (std::size_t begin = 0; begin < tokens.size(); begin += kPrefillTokens) {
    const std::span<const std::int32_t> part = tokens.subspan(begin, std::min(kPrefillTokens, tokens.size() - begin));
    const std::vector<std::int64_t> offsets{0, static_cast<std::int64_t>(part.size())};
    runner_.last_logits({part, offsets}, logits.view(), {&states, slots});
  }
  speed_.prompt_tokens += static_cast<std::int64_t>(tokens.size());
  speed_.prompt_seconds += seconds_since(start);
  return {logits.as<float>().begin(), logits.as<float>().end()};
}

// All sequences to their ends, without the logits ever leaving the device.
void Generator::decode_on_device(std::vector<Sequence>& sequences, const GenerationOptions& options,
                                 ModelStates& states, const std::vector<std::int64_t>& slots,
                                 const std::function<void(std::size_t, const std::string&)>& say) {
  std::vector<std::size_t> rows;  // the sequences that go on
  std::vector<std::int64_t> row_slots;
  std::vector<std::int32_t> first;
  std::vector<std::uint64_t> streams;
  std::vector<std::vector<std::int32_t>> seen;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].done()) continue;
    rows.push_back(i);
    row_slots.push_back(slots[i]);
    first.push_back(sequences[i].last());
    streams.push_back(i);
    seen.push_back(sequences[i].seen());
  }
  if (rows.empty()) return;
  DeviceDecoder decoder(runner_, device_, states, row_slots, first, streams, options.sampling, seen);
  for (std::size_t left = rows.size(); left > 0;) {
    const std::span<const std::int32_t> tokens = decoder.next();
    speed_.decoded_tokens += static_cast<std::int64_t>(left);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      Sequence& sequence = sequences[rows[row]];
      if (sequence.done()) continue;
      say(rows[row], sequence.advance(tokens[row]));
      if (!sequence.done()) continue;
      --left;
      if (left > 0) decoder.end(row);
    }
  }
}

std::vector<Generated> Generator::generate(const std::vector<std::vector<std::int32_t>>& prompts,
                                           const GenerationOptions& options, ModelStates& states,
                                           const std::vector<std::int64_t>& slots,
                                           const std::function<void(std::size_t, const std::string&)>& piece) {
  options.sampling.check();
  require(options.max_tokens > 0, "max-tokens is {}, expected at least 1", options.max_tokens);
  require(prompts.size() == slots.size(), "{} prompts for {} states", prompts.size(), slots.size());
  const std::int64_t vocabulary = model_.config().vocab_size;
  std::vector<Sequence> sequences;
  const auto say = [&](std::size_t index, const std::string& text) {
    if (piece && !text.empty()) piece(index, text);
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    sequences.emplace_back(tokenizer_, options, i, prompts[i]);
    const std::vector<float> logits = read(prompts[i], states, slots[i]);
    say(i, sequences[i].advance(logits));
  }

  const auto start = Clock::now();
  if (device_.gpu != nullptr) decode_on_device(sequences, options, states, slots, say);
  while (true) {
    // The sequences that go on, as one batch.
    std::vector<std::size_t> active;
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> active_slots;
    std::vector<std::int64_t> offsets{0};
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].done()) continue;
      active.push_back(i);
      ids.push_back(sequences[i].last());
      active_slots.push_back(slots[i]);
      offsets.push_back(static_cast<std::int64_t>(active.size()));
    }
    if (active.empty()) break;
    Tensor logits(DType::f32, {static_cast<std::int64_t>(active.size()), vocabulary});
    runner_.last_logits({ids, offsets}, logits.view(), {&states, active_slots});
    for (std::size_t n = 0; n < active.size(); ++n) {
      const auto row =
          logits.as<float>().subspan(n * static_cast<std::size_t>(vocabulary), static_cast<std::size_t>(vocabulary));
      say(active[n], sequences[active[n]].advance(row));
    }
    speed_.decoded_tokens += static_cast<std::int64_t>(active.size());
  }
  speed_.decode_seconds += seconds_since(start);
  std::vector<Generated> results;
  for (Sequence& sequence : sequences) results.push_back(sequence.take());
  return results;
}

}  // namespace qdelta
