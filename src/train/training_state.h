// A training run on disk, and how it survives: everything to go on exactly where it stopped.
//
//   RUN/log.jsonl, RUN/events...          what happened
//   RUN/checkpoints/step-00000100/        a model folder (config.json, model.safetensors, tokenizer), and beside it
//     optimizer.safetensors               AdamW's m and v
//     ema/                                a model folder of the averaged weights, where the run keeps an average
//     state.json                          step, tokens, the data source's position, the best validation loss
//
// A checkpoint is written under a temporary name and renamed when it is whole, so a folder named step-N is complete
// whatever happened; leftovers of an interrupted write are removed on the next save. Weights, moments and state.json
// carry checksums, which loading compares.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "model/language_model.h"
#include "train/trainer.h"

namespace qdelta {

struct TrainingState {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::int64_t updates = 0;         // OptimizerState::updates
  std::uint64_t data_position = 0;  // BatchSource::position()
  std::int64_t skipped = 0;
  double seconds = 0;  // of training, over all its pieces
  double best_validation = 0;
  std::int64_t evaluations_since_best = 0;
  std::string recipe;  // of the run, to notice when a resumed run is told something else
};

// The step of a checkpoint by the name of its folder; nullopt where that is no name of one.
[[nodiscard]] std::optional<std::int64_t> step_of_checkpoint(const std::string& folder);

// The newest complete checkpoint of a run, if there is one.
[[nodiscard]] std::optional<std::string> newest_checkpoint(const std::string& run);

// Throws unless so many checkpoints can be kept.
void check_keep(int keep);

// Writes checkpoint `state.step` and then, when it is safe on disk, deletes all but the newest `keep`. `tokenizer` is a
// folder or file to copy the tokenizer from, "" for none. Gives the folder.
std::string save_checkpoint(const std::string& run, const LanguageModel& model, OptimizerState& optimizer,
                            const TrainingState& state, int keep, const std::string& tokenizer);

// Deletes all but the newest `keep` checkpoints, and what an interrupted write or deletion left of others.
void tidy_checkpoints(const std::string& run, int keep);

// Loads parameters and optimizer into a model of the same shape.
[[nodiscard]] TrainingState load_checkpoint(const std::string& folder, LanguageModel& model, OptimizerState& optimizer);

// Reads all of a checkpoint: false where it is whole as far as can be seen, but a file has no checksum. Throws what
// load_checkpoint would.
bool verify_checkpoint(const std::string& folder);

struct ResumedCheckpoint {
  std::string folder;
  TrainingState state;
};
// Loads the newest checkpoint of a run that can be loaded. Newer ones, which are damaged, get names that end in
// .damaged, so that nothing takes them for checkpoints any more, and `say` gets a sentence for each. Throws what is
// wrong with the newest where there is none that is whole.
[[nodiscard]] ResumedCheckpoint load_newest_checkpoint(const std::string& run, LanguageModel& model,
                                                       OptimizerState& optimizer,
                                                       const std::function<void(const std::string&)>& say);

}  // namespace qdelta
