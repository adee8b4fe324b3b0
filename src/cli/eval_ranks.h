// eval --sequence-parallel: the questions of rank 0, which all ranks answer together.
//
// Rank 0 runs the evaluation; its engine tells the others (follow) what to compute. Likelihoods are taken over the
// sequences of a batch laid end to end and cut into a part for each rank, as in training. Prompts that are continued
// are dealt out instead: they are read piece by piece into a state, which takes as much memory for a long prompt as for
// a short one.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/ranks.h"
#include "data/batches.h"
#include "eval/engine.h"
#include "train/sequence_ranks.h"

namespace qdelta {

class EngineOfRanks final : public eval::Engine {
 public:
  // `tokenizer` may be null where nothing is generated.
  EngineOfRanks(const LanguageModel& model, const Ranks& ranks, const RankGroups& groups, std::int64_t batch,
                const Tokenizer* tokenizer);

  // For rank 0.
  [[nodiscard]] std::vector<eval::Likelihood> likelihoods(std::span<const eval::TokenPair* const> pairs) override;
  [[nodiscard]] std::vector<Generated> generate(const Tokenizer& tokenizer, const std::vector<eval::Tokens>& prompts,
                                                std::int64_t max_tokens, const std::vector<std::string>& stop) override;
  [[nodiscard]] Answers answers(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                                std::int64_t length) override;
  void dismiss();  // the others

  // For the others: does what rank 0 asks until it dismisses them.
  void follow();

 private:
  [[nodiscard]] nlohmann::json share(const nlohmann::json& order) const;
  [[nodiscard]] Answers answers_of(const TokenBatch& whole);
  [[nodiscard]] Answers part_of_answers(const TokenBatch& whole);
  [[nodiscard]] std::vector<std::string> share_of_texts(const nlohmann::json& order);

  const Ranks& ranks_;
  const Tokenizer* tokenizer_;
  SequenceRanks sequence_;
  ModelRunner runner_;
};

}  // namespace qdelta
