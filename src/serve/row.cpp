#include "serve/row.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "infer/prompt.h"

namespace qdelta::serve {

ScoredToken scored(std::int32_t token, std::span<const float> logits, std::int64_t top) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - static_cast<double>(most));
  const double total = static_cast<double>(most) + std::log(sum);
  const auto log_probability = [&](std::int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(id)]) - total);
  };
  ScoredToken result{token, log_probability(token), {}};
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<std::ptrdiff_t>(top, static_cast<std::ptrdiff_t>(order.size()));
  std::partial_sort(order.begin(), end, order.end(), [&](std::int32_t a, std::int32_t b) {
    const float za = logits[static_cast<std::size_t>(a)];
    const float zb = logits[static_cast<std::size_t>(b)];
    return za > zb || (za == zb && a < b);
  });
  for (auto id = order.begin(); id != end; ++id) result.top.push_back({*id, log_probability(*id)});
  return result;
}

Row::Row(std::shared_ptr<Job> job, std::size_t sequence, std::uint64_t arrival, const Tokenizer& tokenizer)
    : job_(std::move(job)),
      plan_(job_->plans()[sequence]),
      sequence_(sequence),
      arrival_(arrival),
      sampler_(plan_.sampling, plan_.stream),
      stream_(stream_behind(tokenizer, plan_.prompt)),
      held_(plan_.stop),
      eos_(plan_.stop_at_eos ? tokenizer.eos() : std::nullopt),
      seen_(plan_.prompt) {
  const std::span<const std::int32_t> prompt = plan_.prompt;
  if (plan_.score_prompt) prompt_scores_.push_back({prompt.front(), std::nullopt, {}});
  // Where the prompt is one token there is nothing to read before the first step, and without one nothing at all.
  if (prompt.size() == 1) read(0, {});
}

std::span<const std::int32_t> Row::unread(std::size_t most) const {
  const std::span<const std::int32_t> prompt = plan_.prompt;
  if (done_ || read_ + 1 >= prompt.size()) return {};
  return prompt.subspan(read_, std::min(most, prompt.size() - 1 - read_));
}

std::int32_t Row::after_unread(std::size_t i) const { return plan_.prompt[read_ + i + 1]; }

void Row::read(std::size_t count, std::vector<ScoredToken> scores) {
  read_ += count;
  std::move(scores.begin(), scores.end(), std::back_inserter(prompt_scores_));
  if (read_ + 1 < plan_.prompt.size()) return;
  Update update;
  update.prompt = std::exchange(prompt_scores_, {});
  if (plan_.max_tokens == 0) {
    send(std::move(update), Finish::length);
  } else if (!update.prompt.empty()) {
    send(std::move(update), Finish::none);
  }
}

void Row::advance(std::span<const float> logits) {
  const std::int32_t token = sampler_.next(logits, seen_);
  seen_.push_back(token);
  ++generated_;
  Update update;
  if (plan_.logprobs >= 0) {
    update.generated.push_back(scored(token, logits, plan_.logprobs));
  } else {
    update.generated.push_back({token, std::nullopt, {}});
  }
  Finish finish = Finish::none;
  if (eos_ && token == *eos_) {
    finish = Finish::stop;
    update.text = held_.finish() + stream_.finish();
  } else {
    update.text = held_.push(stream_.push(token));
    if (held_.stopped()) {
      finish = Finish::stop;
    } else if (generated_ >= plan_.max_tokens) {
      finish = Finish::length;
      update.text += held_.finish() + stream_.finish();
    }
  }
  send(std::move(update), finish);
}

void Row::send(Update update, Finish finish) {
  update.sequence = sequence_;
  update.finish = finish;
  done_ = finish != Finish::none;
  job_->push(std::move(update));
}

}  // namespace qdelta::serve
