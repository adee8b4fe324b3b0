#include "model/log_probabilities.h"

#include <algorithm>
#include <numeric>

namespace qdelta {
namespace {

// The `top` largest of a row of logits, the largest first, of equal ones the first.
void largest(std::span<const float> z, std::vector<std::int32_t>& order, std::span<std::int32_t> tokens) {
  order.resize(z.size());
  std::iota(order.begin(), order.end(), 0);
  const auto above = [z](std::int32_t a, std::int32_t b) {
    const float za = z[static_cast<std::size_t>(a)];
    const float zb = z[static_cast<std::size_t>(b)];
    return za > zb || (za == zb && a < b);
  };
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(tokens.size());
  std::partial_sort(order.begin(), end, order.end(), above);
  std::copy(order.begin(), end, tokens.begin());
}

}  // namespace

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

std::span<const std::int32_t> LogProbabilities::uploaded(std::span<const std::int32_t> tokens) {
  if (device_.gpu == nullptr) return tokens;
  tokens_.grow(device_, tokens.size_bytes());
  upload(device_, tokens_.data(), tokens.data(), tokens.size_bytes());
  return {reinterpret_cast<const std::int32_t*>(tokens_.data()), tokens.size()};
}

// The log-probability of one token of each row; `best`, if not empty, receives the most likely one.
void LogProbabilities::ask(const TensorView& logits, std::span<const std::int32_t> device_tokens,
                           std::span<std::int32_t> best, std::span<float> out) {
  const std::span<float> loss{reinterpret_cast<float*>(loss_.data()), out.size()};
  cross_entropy(device_, {.logits = logits, .targets = device_tokens, .loss = loss, .best = best});
  download(device_, out.data(), loss.data(), loss.size_bytes());
  for (float& value : out) value = -value;
}

void LogProbabilities::compute(const TensorView& logits, const TokenLogProbabilities& out) {
  const std::int64_t vocabulary = logits.extent(1);
  out.check(logits.extent(0), vocabulary);
  const auto rows = static_cast<std::size_t>(logits.extent(0));
  const auto top = static_cast<std::size_t>(out.top);
  if (rows == 0) return;
  loss_.grow(device_, rows * sizeof(float));
  best_.grow(device_, rows * sizeof(std::int32_t));
  const std::span<std::int32_t> best{reinterpret_cast<std::int32_t*>(best_.data()), rows};
  ask(logits, uploaded(out.targets), best, out.log_probability);
  if (top == 1) {
    download(device_, out.top_tokens.data(), best.data(), best.size_bytes());
    return ask(logits, best, {}, out.top_log_probability);
  }
  // More than the most likely one is selected on the host.
  const auto width = static_cast<std::size_t>(vocabulary);
  require(logits.contiguous(), "the logits of several rows must lie side by side");
  host_.resize(rows * width);
  download(device_, host_.data(), logits.data, host_.size() * sizeof(float));
  for (std::size_t row = 0; row < rows; ++row) {
    largest(std::span(host_).subspan(row * width, width), order_, out.top_tokens.subspan(row * top, top));
  }
  column_.resize(rows);
  column_tokens_.resize(rows);
  for (std::size_t k = 0; k < top; ++k) {
    for (std::size_t row = 0; row < rows; ++row) column_tokens_[row] = out.top_tokens[row * top + k];
    ask(logits, uploaded(column_tokens_), {}, column_);
    for (std::size_t row = 0; row < rows; ++row) out.top_log_probability[row * top + k] = column_[row];
  }
}

}  // namespace qdelta
