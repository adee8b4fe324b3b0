#include "cli/eval_ranks.h"

#include <cmath>
#include <cstdint>

#include "core/error.h"
#include "io/parse_json.h"

namespace qdelta {
namespace {

using eval::Likelihood;
using eval::TokenPair;
using eval::Tokens;

// What rank 0 asks of the others.
constexpr const char* kAnswers = "answers";
constexpr const char* kTexts = "texts";
constexpr const char* kDone = "done";

// It is our own, and a batch of long texts has millions of tokens.
constexpr JsonLimits kMessage{.bytes = SIZE_MAX, .values = SIZE_MAX};

// What rank `root` has to say, on every rank.
nlohmann::json broadcast(Communicator& all, const nlohmann::json& message, int root) {
  std::string text = message.dump();
  auto size = static_cast<std::int64_t>(text.size());
  all.broadcast(Device{}, std::as_writable_bytes(std::span(&size, 1)), root);
  text.resize(static_cast<std::size_t>(size));
  all.broadcast(Device{}, std::as_writable_bytes(std::span(text)), root);
  return parse_json(text, "a message between ranks", kMessage);
}

void append(const Tokens& ids, const std::vector<std::int32_t>& targets, TokenBatch& batch) {
  if (batch.offsets.empty()) batch.offsets.push_back(0);
  batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
  batch.targets.insert(batch.targets.end(), targets.begin(), targets.end());
  batch.offsets.push_back(static_cast<std::int64_t>(batch.ids.size()));
}

// The tokens of a pair but the last, and as targets those of its continuation.
void append(const TokenPair& pair, TokenBatch& batch) {
  Tokens ids = pair.context;
  ids.insert(ids.end(), pair.continuation.begin(), pair.continuation.end());
  std::vector<std::int32_t> targets(ids.size() - 1, -1);
  std::copy(pair.continuation.begin(), pair.continuation.end(), targets.end() - std::ssize(pair.continuation));
  ids.pop_back();
  append(ids, targets, batch);
}

}  // namespace

EngineOfRanks::EngineOfRanks(const LanguageModel& model, const Ranks& ranks, const RankGroups& groups,
                             std::int64_t batch, const Tokenizer* tokenizer)
    : Engine(model, ranks.device(), batch),
      ranks_(ranks),
      tokenizer_(tokenizer),
      sequence_(*ranks.communicator(), groups),
      runner_(model, weights(), ranks.device()) {}

// The order of rank 0, on every rank.
nlohmann::json EngineOfRanks::share(const nlohmann::json& order) const {
  return broadcast(*ranks_.communicator(), order, 0);
}

void EngineOfRanks::dismiss() { static_cast<void>(share({{"what", kDone}})); }

void EngineOfRanks::follow() {
  while (true) {
    const nlohmann::json order = share({});
    const std::string what = order.at("what");
    if (what == kDone) return;
    if (what == kTexts) {
      static_cast<void>(share_of_texts(order));
      continue;
    }
    TokenBatch whole;
    order.at("ids").get_to(whole.ids);
    order.at("targets").get_to(whole.targets);
    order.at("offsets").get_to(whole.offsets);
    static_cast<void>(part_of_answers(whole));
  }
}

// Of all tokens, after this rank has computed its part of them.
EngineOfRanks::Answers EngineOfRanks::part_of_answers(const TokenBatch& whole) {
  const std::size_t tokens = whole.ids.size();
  const auto parts = static_cast<std::size_t>(ranks_.size());
  const std::size_t begin = tokens * static_cast<std::size_t>(ranks_.rank()) / parts;  // as data/batch_part.h cuts
  const TokenBatch mine = sequence_.take(whole);
  std::vector<float> loss(mine.ids.size());
  std::vector<std::int32_t> best(mine.ids.size());
  runner_.losses({mine.ids, mine.offsets, &sequence_}, mine.targets, loss, best);
  // What the other ranks have is zero here, so sums are exact.
  std::vector<double> sums(2 * tokens);
  std::copy(loss.begin(), loss.end(), sums.begin() + static_cast<std::ptrdiff_t>(begin));
  std::copy(best.begin(), best.end(), sums.begin() + static_cast<std::ptrdiff_t>(tokens + begin));
  ranks_.communicator()->all_reduce(Device{}, sums, Reduction::sum);
  Answers out;
  for (std::size_t i = 0; i < tokens; ++i) {
    if (!std::isfinite(sums[i])) fail_not_finite();
    out.loss.push_back(static_cast<float>(sums[i]));
    out.best.push_back(static_cast<std::int32_t>(sums[tokens + i]));
  }
  return out;
}

EngineOfRanks::Answers EngineOfRanks::answers_of(const TokenBatch& whole) {
  TokenBatch padded = whole;  // a part has at least one token
  if (const auto few = static_cast<std::int64_t>(padded.ids.size()); few < ranks_.size()) {
    const auto missing = static_cast<std::size_t>(ranks_.size() - few);
    append(Tokens(missing, 0), std::vector<std::int32_t>(missing, -1), padded);
  }
  static_cast<void>(
      share({{"what", kAnswers}, {"ids", padded.ids}, {"targets", padded.targets}, {"offsets", padded.offsets}}));
  Answers out = part_of_answers(padded);
  out.loss.resize(whole.ids.size());
  out.best.resize(whole.ids.size());
  return out;
}

std::vector<Likelihood> EngineOfRanks::likelihoods(std::span<const TokenPair* const> pairs) {
  std::vector<Likelihood> results;
  for (std::size_t begin = 0; begin < pairs.size(); begin += static_cast<std::size_t>(batch())) {
    const auto group = pairs.subspan(begin, std::min(static_cast<std::size_t>(batch()), pairs.size() - begin));
    TokenBatch whole;
    for (const TokenPair* pair : group) append(*pair, whole);
    const Answers answers = answers_of(whole);
    for (std::size_t i = 0; i < group.size(); ++i) {
      Likelihood& result = results.emplace_back();
      for (auto at = static_cast<std::size_t>(whole.offsets[i]); at < static_cast<std::size_t>(whole.offsets[i + 1]);
           ++at) {
        if (whole.targets[at] < 0) continue;
        result.log_likelihood -= answers.loss[at];
        result.greedy = result.greedy && answers.best[at] == whole.targets[at];
      }
    }
  }
  return results;
}

EngineOfRanks::Answers EngineOfRanks::answers(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                                              std::int64_t length) {
  TokenBatch whole;
  whole.ids.assign(ids.begin(), ids.end());
  whole.targets.assign(targets.begin(), targets.end());
  for (std::int64_t at = 0; at <= static_cast<std::int64_t>(ids.size()); at += length) whole.offsets.push_back(at);
  return answers_of(whole);
}

// Prompt i is rank i's, modulo their number.
std::vector<std::string> EngineOfRanks::share_of_texts(const nlohmann::json& order) {
  const auto all = order.at("prompts").get<std::vector<Tokens>>();
  const auto ranks = static_cast<std::size_t>(ranks_.size());
  std::vector<Tokens> mine;
  for (auto i = static_cast<std::size_t>(ranks_.rank()); i < all.size(); i += ranks) mine.push_back(all[i]);
  require(tokenizer_ != nullptr, "there is no tokenizer to generate with");
  nlohmann::json texts = nlohmann::json::array();
  for (const Generated& generated : Engine::generate(*tokenizer_, mine, order.at("tokens").get<std::int64_t>(),
                                                     order.at("stop").get<std::vector<std::string>>())) {
    texts.push_back(std::vector<std::uint8_t>(generated.text.begin(), generated.text.end()));  // may be no UTF-8
  }
  std::vector<std::string> out(all.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const nlohmann::json of_rank = broadcast(*ranks_.communicator(), texts, static_cast<int>(rank));
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      const auto bytes = of_rank[i].get<std::vector<std::uint8_t>>();
      out[rank + i * ranks].assign(bytes.begin(), bytes.end());
    }
  }
  return out;
}

std::vector<Generated> EngineOfRanks::generate(const Tokenizer& /*tokenizer*/, const std::vector<Tokens>& prompts,
                                               std::int64_t max_tokens, const std::vector<std::string>& stop) {
  const nlohmann::json order = share({{"what", kTexts}, {"prompts", prompts}, {"tokens", max_tokens}, {"stop", stop}});
  std::vector<Generated> out;
  for (std::string& text : share_of_texts(order)) out.emplace_back().text = std::move(text);
  return out;
}

}  // namespace qdelta
