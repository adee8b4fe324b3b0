#include "infer/prompt_reader.h"

#include <utility>

#include "kernels/row_blocks.h"

namespace qdelta {

PromptReader::PromptReader(const LanguageModel& model, std::shared_ptr<const DeviceWeights> weights,
                           ModelStates& states)
    : weights_(std::move(weights)),
      runner_(model, weights_, states.device()),
      states_(states),
      has_graphs_(states.device().gpu != nullptr &&
                  prompt_cuts(model, states.device()).grid == static_cast<std::size_t>(kRowBlock)) {}

bool PromptReader::fits_graph(std::span<const PromptPiece> pieces) const {
  if (!has_graphs_ || pieces.size() != 1) return false;
  const PromptPiece& piece = pieces.front();
  return piece.slot < PromptGraph::kSlots && piece.end > piece.begin &&
         piece.end - piece.begin <= PromptGraph::kMostTokens && piece.score_begin == piece.score_end;
}

std::vector<std::vector<TokenScore>> PromptReader::read(std::span<const PromptPiece> pieces, std::int64_t top) {
  graph_logits_ = {};
  if (fits_graph(pieces)) {
    const PromptPiece& piece = pieces.front();
    if (!graph_) graph_.emplace(runner_.model(), weights_, states_);
    graph_logits_ = graph_->read(piece.prompt.subspan(piece.begin, piece.end - piece.begin), piece.slot);
    return std::vector<std::vector<TokenScore>>(1);
  }
  ids_.clear();
  rows_.clear();
  targets_.clear();
  slots_.clear();
  offsets_.assign(1, 0);
  for (const PromptPiece& piece : pieces) {
    for (std::size_t i = piece.score_begin; i < piece.score_end; ++i) {
      rows_.push_back(static_cast<std::int32_t>(ids_.size() + i - piece.begin));
      targets_.push_back(i + 1 < piece.prompt.size() ? piece.prompt[i + 1] : -1);
    }
    const std::span<const std::int32_t> tokens = piece.prompt.subspan(piece.begin, piece.end - piece.begin);
    ids_.insert(ids_.end(), tokens.begin(), tokens.end());
    offsets_.push_back(static_cast<std::int64_t>(ids_.size()));
    slots_.push_back(piece.slot);
  }
  {
    const RowBlocks rows_alone;
    runner_.next_tokens({ids_, offsets_}, rows_, scores_.prepare(targets_, top), {&states_, slots_});
  }

  std::vector<std::vector<TokenScore>> scores(pieces.size());
  std::size_t row = 0;
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    for (std::size_t i = pieces[n].score_begin; i < pieces[n].score_end; ++i) scores[n].push_back(scores_.at(row++));
  }
  return scores;
}

TensorView PromptReader::logits_after(std::span<const std::size_t> pieces) {
  if (graph_logits_) return graph_logits_;
  rows_.clear();
  for (const std::size_t piece : pieces) rows_.push_back(static_cast<std::int32_t>(offsets_[piece + 1] - 1));
  const RowBlocks rows_alone;
  return runner_.logits_at(rows_);
}

}  // namespace qdelta
