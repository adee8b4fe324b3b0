// Decoding: sequences in the slots of a pool of states. Prompts are read in pieces, of several sequences at once; then
// all sequences that have read theirs take one step together, a token each. Memory does not depend on how long anything
// is. What to read when is the caller's to decide.
//
// What a sequence gets does not depend on the others, to the bit: it has its own random numbers, its prompt is cut into
// pieces of its own, and rows of a step are summed up as each would be alone (kernels/row_blocks.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "infer/decode_step.h"
#include "infer/prompt_reader.h"
#include "infer/sampler.h"
#include "infer/sequence.h"
#include "model/log_probabilities.h"

namespace qdelta {

struct DecoderOptions {
  std::int64_t max_rows = 1024;  // sequences in one step; more of them take turns
  // On a GPU: steps keep the last tokens beside the states and write these the more rarely (model/recent_tokens.h).
  bool recent_tokens = false;
};

class Decoder {
 public:
  Decoder(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, ModelStates& states,
          const DecoderOptions& options = {});

  // The sequence continues from the state in the slot. It must live until it is removed.
  void add(std::int64_t slot, Sequence& sequence);
  // What its steps left of a state is of no use unless they were settled.
  void remove(std::int64_t slot);
  // The state in the slot becomes that after all tokens that were read: whoever reads it other than by steps calls this
  // first.
  void settle(std::int64_t slot) { step_.settle(slot); }
  // The sequence in `slot` has the prompt of the one in `leader`, whose reading has not ended, and wants the same
  // scores of it: it is read once for both.
  void follow(std::int64_t slot, std::int64_t leader);
  // The sequence in a slot; null where there is none.
  [[nodiscard]] Sequence* at(std::int64_t slot) const { return sequences_[static_cast<std::size_t>(slot)]; }

  // Reads the next piece of the prompts in these slots, on a GPU in one call of the model. Those whose prompt has been
  // read get their first token.
  void read(std::span<const std::int64_t> slots);
  // One more token for every sequence that has read its prompt. Gives how many there were.
  std::size_t step();
  // The same in two halves: on a GPU `launch_step` returns before the step is done, and what needs the model's output
  // is left to `finish_step`. Between the two the sequences must stay where they are; prompts may be read.
  std::size_t launch_step();
  void finish_step();
  // Reads a piece that is no sequence's.
  void read_piece(const PromptPiece& piece) { static_cast<void>(reader_.read({&piece, 1})); }
  // Reads tokens that are no sequence's into the state of a slot, in pieces; gives the logits after the last.
  std::vector<float> read_tokens(std::span<const std::int32_t> tokens, std::int64_t slot);

 private:
  // What came of a piece of a prompt, for the sequence in a slot and at the prompt's end those that follow it.
  void take_piece(std::int64_t slot, const PromptPiece& piece, std::span<const TokenScore> scores);
  // The first token of sequences whose prompts have been read to their ends by the last call of the model, and of those
  // that follow them.
  void sample_first(std::vector<std::size_t> pieces, std::span<const std::int64_t> slots);
  void sample(const TensorView& logits, std::span<const std::int64_t> slots);
  // Hands out what was sampled from these logits. The sequences that want scores come first.
  void append(std::span<const std::int64_t> slots, std::span<const std::int32_t> tokens, const TensorView& logits);
  [[nodiscard]] bool wants_score(std::int64_t slot) const { return at(slot)->options().logprobs >= 0; }

  const LanguageModel& model_;
  Device device_;
  ModelStates& states_;
  std::vector<Sequence*> sequences_;                     // by slot
  std::multimap<std::int64_t, std::int64_t> followers_;  // slots by that of their leader
  Sampler sampler_;
  PromptReader reader_;
  DecodeStep step_;
  LogProbabilities log_probabilities_;
  TokenScores scores_;
  DeviceBuffer first_slots_, first_tokens_;
  // The step that has been launched.
  std::vector<std::int64_t> step_slots_;
  std::vector<std::int32_t> step_tokens_;
};

}  // namespace qdelta
