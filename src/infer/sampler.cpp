#include "infer/sampler.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace qdelta {

void fail_without_numbers() {
  fail(Status::corrupt, "the model gives no number for a token: its weights or activations are not finite");
}

Sampler::Sampler(const SamplingOptions& options, std::uint64_t stream)
    : options_(options), random_(mixed_seed(options.seed, stream)) {}

std::int32_t Sampler::next(std::span<const float> logits, std::span<const std::int32_t> seen) {
  candidates_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) fail_without_numbers();
    candidates_[i] = {logits[i], static_cast<std::int32_t>(i)};
  }
  if (options_.repetition_penalty != 1.0F) {
    std::vector<bool> done(logits.size(), false);
    for (const std::int32_t token : seen) {
      const auto at = static_cast<std::size_t>(token);
      if (at >= logits.size() || done[at]) continue;
      done[at] = true;
      float& logit = candidates_[at].logit;
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    }
  }
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  };
  if (options_.temperature == 0) return std::min_element(candidates_.begin(), candidates_.end(), more_likely)->token;

  // Most likely first, as far as the cuts can reach.
  const bool all = options_.top_k == 0 || static_cast<std::size_t>(options_.top_k) >= candidates_.size();
  if (all) {
    std::sort(candidates_.begin(), candidates_.end(), more_likely);
  } else {
    std::partial_sort(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), more_likely);
    candidates_.resize(static_cast<std::size_t>(options_.top_k));
  }
  weights_.clear();
  double total = 0;
  const float top = candidates_.front().logit;
  for (const Candidate& candidate : candidates_) {
    // Where the top is infinite the difference is no number.
    const double weight =
        candidate.logit == top
            ? 1.0
            : std::exp(static_cast<double>(candidate.logit - top) / static_cast<double>(options_.temperature));
    if (weight < static_cast<double>(options_.min_p)) break;
    weights_.push_back(weight);
    total += weight;
  }
  if (options_.top_p < 1) {
    double sum = 0;
    std::size_t kept = 0;
    while (kept < weights_.size() && sum < static_cast<double>(options_.top_p) * total) sum += weights_[kept++];
    weights_.resize(std::max<std::size_t>(kept, 1));
    total = sum;
  }
  double point = random_.uniform() * total;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    point -= weights_[i];
    if (point < 0) return candidates_[i].token;
  }
  return candidates_[weights_.size() - 1].token;  // rounding
}

}  // namespace qdelta
