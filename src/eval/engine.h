// A model that is asked questions: how likely continuations are, and what it would say.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/encoding.h"
#include "infer/generator.h"
#include "infer/scoring.h"

namespace qdelta::eval {

struct Likelihood {
  double log_likelihood = 0;  // summed in double over the continuation's tokens
  bool greedy = true;         // whether greedy decoding would give the continuation
};

class Engine {
 public:
  // `batch`: sequences at a time.
  Engine(const LanguageModel& model, const Device& device, std::int64_t batch);
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Of each pair. Pairs that stand next to each other and have the same context read it once: the state after all but
  // its last token is kept and every continuation starts from a copy.
  [[nodiscard]] virtual std::vector<Likelihood> likelihoods(std::span<const TokenPair* const> pairs);
  // Greedy continuations of prompts.
  [[nodiscard]] virtual std::vector<Generated> generate(const Tokenizer& tokenizer, const std::vector<Tokens>& prompts,
                                                        std::int64_t max_tokens, const std::vector<std::string>& stop);
  // The loss and the most likely answer at every position with a target, of sequences of one length.
  struct Answers {
    std::vector<float> loss;
    std::vector<std::int32_t> best;
  };
  [[nodiscard]] virtual Answers answers(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                                        std::int64_t length);

  [[nodiscard]] const LanguageModel& model() const { return model_; }
  [[nodiscard]] std::int64_t batch() const { return batch_; }

 protected:
  [[nodiscard]] const std::shared_ptr<const DeviceWeights>& weights() const { return weights_; }

 private:
  const LanguageModel& model_;
  Device device_;
  std::int64_t batch_;
  std::shared_ptr<const DeviceWeights> weights_;
  Scorer scorer_;
  ModelStates states_;  // of shared contexts, or of texts that are being generated
  std::unique_ptr<Generator> generator_;
  std::unique_ptr<ModelRunner> runner_;
};

}  // namespace qdelta::eval
