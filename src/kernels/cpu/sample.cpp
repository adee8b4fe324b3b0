// The formula stands in kernels/sampling.h. Candidates are sorted by likelihood, weights are summed in that order in
// double, and the draw takes the first candidate whose cumulative weight exceeds uniform * total. Rows are independent:
// each thread takes whole ones.
#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>

#include "core/memory.h"
#include "core/random.h"
#include "core/threads.h"
#include "kernels/cpu/view_check.h"

namespace qdelta::cpu {
namespace {

struct Candidate {
  float logit;
  std::int32_t token;
};

bool more_likely(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// Scratch of one thread.
struct Scratch {
  std::span<Candidate> candidates;
  std::span<double> weights;

  Scratch(std::int64_t vocabulary, BumpAllocator& memory)
      : candidates(memory.take<Candidate>(vocabulary), static_cast<std::size_t>(vocabulary)),
        weights(memory.take<double>(vocabulary), static_cast<std::size_t>(vocabulary)) {}
};

std::size_t scratch_bytes(std::int64_t vocabulary) {
  BumpAllocator counter(nullptr);
  (void)Scratch(vocabulary, counter);
  return counter.used();
}

int workers(const Device& device, std::int64_t rows) {
  return static_cast<int>(std::clamp<std::int64_t>(rows, 1, thread_count(device.threads)));
}

bool has(std::span<const std::uint32_t> seen, std::size_t token) {
  return (seen[token / 32] >> (token % 32) & 1U) != 0;
}

// All tokens with their penalised logits; false where there is a NaN.
bool load(std::span<const float> logits, float penalty, std::span<const std::uint32_t> seen,
          std::span<Candidate> candidates) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return false;
    candidates[i] = {logits[i], static_cast<std::int32_t>(i)};
  }
  if (penalty == 1.0F) return true;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!has(seen, i)) continue;
    float& logit = candidates[i].logit;
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  return true;
}

// The weights of sorted candidates that min_p and top_p keep; their sum is in `total`.
std::span<double> weigh(std::span<const Candidate> candidates, const SamplingOptions& options,
                        std::span<double> weights, double& total) {
  const float most = candidates.front().logit;
  std::size_t count = 0;
  total = 0;
  for (const Candidate& candidate : candidates) {
    // Where the largest logit is infinite the difference to itself is no number.
    const double weight =
        candidate.logit == most
            ? 1.0
            : std::exp(static_cast<double>(candidate.logit - most) / static_cast<double>(options.temperature));
    if (weight < static_cast<double>(options.min_p)) break;
    weights[count++] = weight;
    total += weight;
  }
  if (options.top_p < 1) {
    double sum = 0;
    std::size_t kept = 0;
    while (kept < count && sum < static_cast<double>(options.top_p) * total) sum += weights[kept++];
    count = std::max<std::size_t>(kept, 1);
    total = sum;
  }
  return weights.first(count);
}

std::int32_t draw(std::span<const float> logits, const SamplingState& state, std::span<const std::uint32_t> seen,
                  const Scratch& scratch) {
  const SamplingOptions& options = state.options;
  std::span<Candidate> candidates = scratch.candidates;
  if (!load(logits, options.repetition_penalty, seen, candidates)) return -1;
  if (options.temperature == 0) return std::min_element(candidates.begin(), candidates.end(), more_likely)->token;

  // Most likely first, as far as the cuts can reach.
  if (options.top_k == 0 || static_cast<std::size_t>(options.top_k) >= candidates.size()) {
    std::sort(candidates.begin(), candidates.end(), more_likely);
  } else {
    std::partial_sort(candidates.begin(), candidates.begin() + options.top_k, candidates.end(), more_likely);
    candidates = candidates.first(static_cast<std::size_t>(options.top_k));
  }
  double total = 0;
  const std::span<const double> weights = weigh(candidates, options, scratch.weights, total);
  double point = Random(mixed_seed(options.seed, state.stream), state.draws).uniform() * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    point -= weights[i];
    if (point < 0) return candidates[i].token;
  }
  return candidates[weights.size() - 1].token;  // rounding left a rest
}

}  // namespace

std::size_t sample_workspace(const Device& device, const Sample& args) {
  return static_cast<std::size_t>(workers(device, args.logits.extent(0))) * scratch_bytes(args.logits.extent(1));
}

void sample(const Device& device, const Sample& args, std::span<std::byte> workspace) {
  check_matrix(args.logits, "logits");
  const std::int64_t rows = args.logits.extent(0);
  const std::int64_t width = args.logits.extent(1);
  const auto slot_of = [&](std::int64_t row) {
    return args.slots.empty() ? row : args.slots[static_cast<std::size_t>(row)];
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t slot = slot_of(row);
    require(slot < static_cast<std::int64_t>(args.states.size()), "sample: there is no slot {} in a pool of {}", slot,
            args.states.size());
    if (slot >= 0) args.states[static_cast<std::size_t>(slot)].options.check();
  }
  const auto words = static_cast<std::size_t>(seen_words(width));
  const std::size_t scratch = scratch_bytes(width);
  parallel_for(rows, workers(device, rows), [&](std::int64_t row, int worker) {
    const std::int64_t slot = slot_of(row);
    if (slot < 0) return;
    SamplingState& state = args.states[static_cast<std::size_t>(slot)];
    const std::span<std::uint32_t> seen = args.seen.subspan(static_cast<std::size_t>(slot) * words, words);
    const std::span<const float> logits{floats(args.logits) + row * args.logits.step(0),
                                        static_cast<std::size_t>(width)};
    BumpAllocator memory(workspace.data() + static_cast<std::size_t>(worker) * scratch);
    const std::int32_t token = draw(logits, state, seen, Scratch(width, memory));
    args.tokens[static_cast<std::size_t>(row)] = token;
    ++state.draws;
    if (token >= 0) seen[static_cast<std::size_t>(token) / 32] |= std::uint32_t{1} << (token % 32);
  });
}

}  // namespace qdelta::cpu
