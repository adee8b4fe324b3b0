// Reads pieces of prompts into the states of a pool, several sequences in one call of the model, and scores the tokens
// on the way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "infer/prompt_cuts.h"
#include "infer/prompt_graph.h"
#include "infer/token_score.h"
#include "model/language_model.h"

namespace qdelta {

// Tokens of a prompt that are read at a time: enough for matrix products to run well, so few that memory stays small.
// Pieces are counted from a prompt's own beginning, so that where it is cut does not depend on what else is read. A GPU
// takes more of them at a time; 8,192 tokens of the 340M model take it some 20 ms.
inline constexpr std::size_t kPromptPiece = 512;
inline constexpr std::size_t kGpuPromptPiece = 8192;
[[nodiscard]] inline std::size_t prompt_piece(const Device& device) {
  return device.gpu == nullptr ? kPromptPiece : kGpuPromptPiece;
}
// They may also be shorter, and begin at a state that was kept, where prompt_cuts() allows it: the bits stay the same.
// A text that begins at any other state, such as one from a file, is counted from there.

struct PromptPiece {
  std::span<const std::int32_t> prompt;  // all of it
  std::size_t begin = 0, end = 0;        // the tokens that are read now
  // What follows prompt[i] is scored for i in [score_begin, score_end), which lies within [begin, end). After the last
  // token nothing is known to follow: its score is that of the most likely token.
  std::size_t score_begin = 0, score_end = 0;
  std::int64_t slot = 0;  // of the state it continues
};

class PromptReader {
 public:
  PromptReader(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights, ModelStates& states);

  // Reads pieces of different prompts. Gives the scores of each piece, with the `top` most likely tokens.
  [[nodiscard]] std::vector<std::vector<TokenScore>> read(std::span<const PromptPiece> pieces, std::int64_t top = 1);
  // The logits [R, vocabulary] after the last token of some of the pieces that were read last (given by their indices),
  // in device memory until the next call.
  [[nodiscard]] TensorView logits_after(std::span<const std::size_t> pieces);

 private:
  // Whether it is a short piece for which there is a graph.
  [[nodiscard]] bool fits_graph(std::span<const PromptPiece> pieces) const;

  std::shared_ptr<const DeviceWeights> weights_;
  ModelRunner runner_;
  ModelStates& states_;
  bool has_graphs_;
  std::optional<PromptGraph> graph_;  // made when first needed
  TensorView graph_logits_;           // after the piece that was read last, where a graph read it
  TokenScores scores_;
  // Of one call of the model, kept for the next.
  std::vector<std::int32_t> ids_, rows_, targets_;
  std::vector<std::int64_t> offsets_, slots_;
};

}  // namespace qdelta
