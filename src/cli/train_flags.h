// The flags of `qdelta train` alone, and a run that is resumed by its name.
#pragma once

#include <optional>
#include <string>

#include "cli/run_file.h"
#include "cli/training_flags.h"

namespace qdelta {

struct TrainFlags : TrainingFlags {
  std::string resume_from, init_from, preset, sample_prompt;
  std::int64_t extend = 0;
  // Filled in by prepare().
  std::optional<RunFile> stored;                 // of the run that is resumed
  bool text_given = false, model_given = false;  // on the command line, where a run is resumed

  void add_to(CLI::App& command);
  // Takes settings from --config, from --preset and from the run that is resumed, in this order, where the command line
  // does not give them. Throws where a resumed run is told something else than it was started with.
  void prepare(CLI::App& command);
  // Of a run over so many ranks: throws where a resumed run would have another batch.
  void check_batch(const RankGroups& ranks);
  // What the run's folder is to say.
  [[nodiscard]] static RunFile run_file(const CLI::App& command, const TrainingData& training_data, int ranks);

 private:
  void resume(CLI::App& command);
  void read_extensions();
  [[nodiscard]] LearningRateSchedule new_extension(CLI::App& command) const;
  bool rows_given_ = false;
};

}  // namespace qdelta
