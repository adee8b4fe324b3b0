// The formula stands in kernels/sampling.h. The draw takes the first candidate whose cumulative weight, in double,
// exceeds uniform * total. Nothing is sorted that need not be: without cuts candidates stay in the order of their ids,
// top_k selects its k, and top_p sorts no more of the most likely than it keeps, in steps. Rows are independent: each
// thread takes whole ones.
#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

// What belongs to a slot beside its state.
struct Slot {
  std::span<std::uint32_t> seen, drawn;
  std::span<float> bias;  // empty where it is not used
};

// All tokens with their logits, penalties and bias applied; false where there is a NaN.
bool load(std::span<const float> logits, const SamplingState& state, const Slot& slot,
          std::span<Candidate> candidates) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return false;
    candidates[i] = {logits[i], static_cast<std::int32_t>(i)};
  }
  const float penalty = state.options.repetition_penalty;
  for (std::size_t i = 0; penalty != 1.0F && i < logits.size(); ++i) {
    if (!has(slot.seen, i)) continue;
    float& logit = candidates[i].logit;
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  for (std::size_t i = 0; i < slot.bias.size(); ++i) candidates[i].logit += slot.bias[i];
  for (const std::int32_t end : state.ends) {
    if (end >= 0 && static_cast<std::size_t>(end) < logits.size() && state.draws < state.first_end) {
      candidates[static_cast<std::size_t>(end)].logit = -std::numeric_limits<float>::infinity();
    }
  }
  return true;
}

// The weights of candidates.
void weigh(std::span<const Candidate> candidates, float most, float temperature, std::span<double> weights) {
  const double scale = 1.0 / static_cast<double>(temperature);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    // Where the largest logit is infinite the difference to itself is no number.
    const float logit = candidates[i].logit;
    weights[i] = logit == most ? 1.0 : std::exp(static_cast<double>(logit - most) * scale);
  }
}

double sum_of(std::span<const double> weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  return sum;
}

// The fewest most likely candidates whose weights reach a share of the total, in front and in order. They are selected
// and sorted in groups of growing size, until there are enough of them.
std::span<Candidate> most_likely(std::span<Candidate> candidates, float most, const SamplingOptions& options,
                                 std::span<double> weights) {
  constexpr std::size_t kFirstGroup = 64;
  constexpr std::size_t kGrowth = 4;
  weigh(candidates, most, options.temperature, weights);
  const double wanted = static_cast<double>(options.top_p) * sum_of(weights.first(candidates.size()));
  double sum = 0;
  for (std::size_t done = 0, group = kFirstGroup; done < candidates.size(); group *= kGrowth) {
    const std::size_t end = std::min(done + group, candidates.size());
    const auto rest = candidates.begin() + static_cast<std::ptrdiff_t>(done);
    const auto last = candidates.begin() + static_cast<std::ptrdiff_t>(end);
    if (end < candidates.size()) std::nth_element(rest, last, candidates.end(), more_likely);
    std::sort(rest, last, more_likely);
    weigh(candidates.subspan(done, end - done), most, options.temperature, weights.subspan(done));
    for (; done < end; ++done) {
      sum += weights[done];
      if (sum >= wanted) return candidates.first(done + 1);
    }
  }
  return candidates;
}

std::int32_t draw(std::span<const float> logits, const SamplingState& state, const Slot& slot, const Scratch& scratch) {
  const SamplingOptions& options = state.options;
  std::span<Candidate> candidates = scratch.candidates;
  if (!load(logits, state, slot, candidates)) return -1;
  const Candidate best = *std::min_element(candidates.begin(), candidates.end(), more_likely);
  if (options.temperature == 0) return best.token;

  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < candidates.size()) {
    const auto kept = candidates.begin() + options.top_k;
    std::nth_element(candidates.begin(), kept, candidates.end(), more_likely);
    candidates = candidates.first(static_cast<std::size_t>(options.top_k));
    std::sort(candidates.begin(), candidates.end(), more_likely);  // so that the order is no library's business
  }
  if (options.min_p > 0) {
    const auto unlikely = [&](const Candidate& candidate) {
      double weight = 0;
      weigh({&candidate, 1}, best.logit, options.temperature, {&weight, 1});
      return weight < static_cast<double>(options.min_p);
    };
    const auto end = std::remove_if(candidates.begin(), candidates.end(), unlikely);
    candidates = candidates.first(static_cast<std::size_t>(end - candidates.begin()));
  }
  if (options.top_p < 1) candidates = most_likely(candidates, best.logit, options, scratch.weights);

  const std::span<double> weights = scratch.weights.first(candidates.size());
  weigh(candidates, best.logit, options.temperature, weights);
  double point = Random(mixed_seed(options.seed, state.stream), state.draws).uniform() * sum_of(weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    point -= weights[i];
    if (point < 0) return candidates[i].token;
  }
  return best.token;  // rounding left a rest
}

void count(std::int32_t token, const SamplingOptions& options, const Slot& slot) {
  const auto at = static_cast<std::size_t>(token);
  slot.seen[at / 32] |= std::uint32_t{1} << (at % 32);
  if (slot.bias.empty()) return;
  slot.bias[at] -= options.frequency_penalty + (has(slot.drawn, at) ? 0.0F : options.presence_penalty);
  slot.drawn[at / 32] |= std::uint32_t{1} << (at % 32);
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
    const std::size_t first_word = static_cast<std::size_t>(slot) * words;
    Slot own{.seen = args.seen.subspan(first_word, words), .drawn = {}, .bias = {}};
    if (state.uses_bias() && !args.bias.empty()) {
      own.drawn = args.drawn.subspan(first_word, words);
      own.bias = args.bias.subspan(static_cast<std::size_t>(slot * width), static_cast<std::size_t>(width));
    }
    const std::span<const float> logits{floats(args.logits) + row * args.logits.step(0),
                                        static_cast<std::size_t>(width)};
    BumpAllocator memory(workspace.data() + static_cast<std::size_t>(worker) * scratch);
    const std::int32_t token = draw(logits, state, own, Scratch(width, memory));
    args.tokens[static_cast<std::size_t>(row)] = token;
    ++state.draws;
    if (token >= 0) count(token, state.options, own);
  });
}

}  // namespace qdelta::cpu
