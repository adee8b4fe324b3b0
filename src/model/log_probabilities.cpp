#include "model/log_probabilities.h"

namespace qdelta {

void TokenLogProbabilities::check(std::int64_t rows, std::int64_t vocabulary) const {
  const auto count = static_cast<std::size_t>(rows);
  require(top >= 1 && top <= vocabulary, "the {} most likely of {} tokens were asked for", top, vocabulary);
  require(targets.size() == count && log_probability.size() == count &&
              top_tokens.size() == count * static_cast<std::size_t>(top) &&
              top_log_probability.size() == top_tokens.size(),
          "{} targets and {} places for {} rows", targets.size(), log_probability.size(), rows);
}

TokenLogProbabilities TokenLogProbabilities::part(std::int64_t first, std::int64_t count) const {
  const auto begin = static_cast<std::size_t>(first);
  const auto size = static_cast<std::size_t>(count);
  const auto wide = static_cast<std::size_t>(top);
  return {.targets = targets.subspan(begin, size),
          .top = top,
          .log_probability = log_probability.subspan(begin, size),
          .top_tokens = top_tokens.subspan(begin * wide, size * wide),
          .top_log_probability = top_log_probability.subspan(begin * wide, size * wide)};
}

// What one call gives, side by side, so that it comes to the host in one piece.
struct LogProbabilities::Results {
  std::span<float> loss, log_sum, values;  // of the targets, of the rows, and of the `top` largest logits of each
  std::span<std::int32_t> tokens;

  static std::size_t bytes(std::size_t rows, std::size_t top) { return (2 + 2 * top) * rows * sizeof(float); }
  Results(std::byte* memory, std::size_t rows, std::size_t top) {
    auto* const numbers = reinterpret_cast<float*>(memory);
    loss = {numbers, rows};
    log_sum = {numbers + rows, rows};
    values = {numbers + 2 * rows, rows * top};
    tokens = {reinterpret_cast<std::int32_t*>(numbers + (2 + top) * rows), rows * top};
  }
};

std::span<const std::int32_t> LogProbabilities::uploaded(std::span<const std::int32_t> tokens) {
  if (device_.gpu == nullptr) return tokens;
  tokens_.grow(device_, tokens.size_bytes());
  upload(device_, tokens_.data(), tokens.data(), tokens.size_bytes());
  return {reinterpret_cast<const std::int32_t*>(tokens_.data()), tokens.size()};
}

void LogProbabilities::compute(const TensorView& logits, const TokenLogProbabilities& out) {
  out.check(logits.extent(0), logits.extent(1));
  const auto rows = static_cast<std::size_t>(logits.extent(0));
  const auto top = static_cast<std::size_t>(out.top);
  if (rows == 0) return;
  const std::size_t bytes = Results::bytes(rows, top);
  results_.grow(device_, bytes);
  const Results found(results_.data(), rows, top);
  cross_entropy(
      device_,
      {.logits = logits, .targets = uploaded(out.targets), .loss = found.loss, .best = {}, .log_sum = found.log_sum});
  top_logits(device_, {.logits = logits, .top = out.top, .tokens = found.tokens, .values = found.values});

  host_.resize(bytes);
  download(device_, host_.data(), results_.data(), bytes);
  const Results here(host_.data(), rows, top);
  for (std::size_t row = 0; row < rows; ++row) {
    out.log_probability[row] = -here.loss[row];
    for (std::size_t k = row * top; k < (row + 1) * top; ++k) {
      out.top_tokens[k] = here.tokens[k];
      out.top_log_probability[k] = -(here.log_sum[row] - here.values[k]);  // as the loss of a target is computed
    }
  }
}

}  // namespace qdelta
