#include "train/training_run.h"

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include "io/folder_lock.h"
#include "io/folders.h"
#include "io/run_log.h"
#include "model/flops.h"
#include "train/tensorboard.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A number's place in TensorBoard by its name in the log: what was found in validation stands with the loss of it.
std::string tag_of(const std::string& name) {
  constexpr std::string_view kValidation = "validation_";
  return name.starts_with(kValidation) ? "validation/" + name.substr(kValidation.size()) : "train/" + name;
}

// A model that has learned little may write what would make a terminal do something.
std::string without_controls(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20U && c != '\n' && c != '\t') || byte == 0x7fU) c = ' ';
  }
  return text;
}

// What a run has that lives as long as it does.
class Run {
 public:
  Run(LanguageModel& model, BatchSource& source, std::span<const TokenBatch> validation, const TrainingOptions& options,
      Progress& progress)
      : model_(model),
        source_(source),
        validation_(validation),
        options_(options),
        progress_(progress),
        trainer_(model, options.optimizer, options.device, options.recompute, options.communicator,
                 options.sequence_parallel),
        groups_(options.communicator, options.sequence_parallel),
        flop_per_token_(training_flop_per_token(model.layout())),
        head_flop_per_token_(head_training_flop_per_token(model.layout())) {
    if (first_rank()) open();
    share_start();
    first_step_ = state_.step;
    if (first_rank()) events_.emplace(options.out, state_.step);
    if (first_rank() && !options.settings.empty()) events_->write_settings(options.settings);
    source_.seek(state_.data_position);
  }

  TrainingOutcome go(const std::atomic<bool>& stop) {
    TrainingOutcome outcome;
    outcome.checkpoint = resumed_;
    start_ = Clock::now();
    const std::int64_t total = options_.total_steps();
    const std::int64_t save_every = options_.save_every > 0 ? options_.save_every : options_.eval_every;
    bool saved = true;
    bool stops = false;
    while (state_.step < total && !(stops = any_rank(stop))) {
      const RunRecord record = step();
      outcome.loss = record.loss;
      saved = false;
      const bool last = state_.step == total;
      const bool evaluates = last || (options_.eval_every > 0 && state_.step % options_.eval_every == 0);
      RunRecord logged = record;
      if (evaluates && !validation_.empty()) {
        outcome.validation = evaluate(logged);
        if (enough(outcome.validation)) outcome.end = TrainingOutcome::End::early;
      }
      write(logged);
      if (options_.sample_every > 0 && (last || state_.step % options_.sample_every == 0)) sample();
      if (last || (save_every > 0 && state_.step % save_every == 0) || outcome.end == TrainingOutcome::End::early) {
        outcome.checkpoint = save();
        saved = true;
      }
      if (outcome.end == TrainingOutcome::End::early) break;
    }
    if (stops) {
      outcome.end = TrainingOutcome::End::interrupted;
      if (!saved) outcome.checkpoint = save();
    }
    if (first_rank()) progress_.finish();
    outcome.state = state_;
    return outcome;
  }

 private:
  [[nodiscard]] bool first_rank() const {
    return options_.communicator == nullptr || options_.communicator->rank() == 0;
  }
  [[nodiscard]] std::int64_t ranks() const {
    return options_.communicator == nullptr ? 1 : options_.communicator->size();
  }

  // All ranks stop at the same step.
  [[nodiscard]] bool any_rank(bool value) const {
    if (options_.communicator == nullptr) return value;
    std::int64_t any = value ? 1 : 0;
    options_.communicator->all_reduce(Device{}, std::span(&any, 1), Reduction::max);
    return any != 0;
  }

  // Finds out where to start, and opens the log there.
  void open() {
    make_folders(options_.out);
    lock_ = lock_folder(options_.out);
    const std::string log = (fs::path(options_.out) / kRunLogName).string();
    const auto say = [this](const std::string& text) { progress_.message(text); };
    const std::optional<std::string> checkpoint = newest_checkpoint(options_.out);
    state_.recipe = options_.recipe;
    if (!checkpoint) {
      // A run that was killed before its first checkpoint left nothing to go on from.
      log_ = options_.resume ? RunLog::resume(log, 0, say) : RunLog::create(log);
      if (options_.on_start) options_.on_start();
      return;
    }
    require(options_.resume, "{} already holds a run ({}); pass --resume to go on with it, or another --out",
            options_.out, fs::path(*checkpoint).filename().string());
    trainer_.hold_state();
    const ResumedCheckpoint found = load_newest_checkpoint(options_.out, model_, trainer_.state(), say);
    state_ = found.state;
    resumed_ = found.folder;
    require(state_.recipe == options_.recipe,
            "the run in {} was started with other settings:\n  {}\nthan it is resumed with:\n  {}", options_.out,
            state_.recipe, options_.recipe);
    tidy_checkpoints(options_.out, options_.keep);  // a run that is finished saves no more
    progress_.message(fmt::format("Resumed {} at step {}.", options_.out, state_.step));
    log_ = RunLog::resume(log, state_.step, say);
    restore_last_line();
    if (options_.on_start) options_.on_start();
  }

  // Where the line of the checkpoint's step was damaged, one takes its place with what is still known: a run that is
  // finished will not write another, and each step stands in the log.
  void restore_last_line() {
    if (log_->last_step() + 1 != state_.step) return;
    RunRecord record;
    record.step = state_.step;
    record.tokens = state_.tokens;
    record.learning_rate = learning_rate(options_.schedule, options_.extensions, state_.step);
    record.seconds = state_.seconds;
    record.skipped = state_.skipped;
    log_->append(record);
    progress_.message(fmt::format("The log has step {} without its loss, which is lost.", state_.step));
  }

  // What rank 0 found in the folder is what every rank starts from.
  void share_start() {
    if (options_.communicator != nullptr) {
      std::array<std::int64_t, 5> counts{state_.step, state_.tokens, static_cast<std::int64_t>(state_.data_position),
                                         state_.skipped, state_.evaluations_since_best};
      std::array<double, 2> numbers{state_.seconds, state_.best_validation};
      options_.communicator->broadcast(Device{}, std::as_writable_bytes(std::span(counts)), 0);
      options_.communicator->broadcast(Device{}, std::as_writable_bytes(std::span(numbers)), 0);
      state_.step = counts[0];
      state_.tokens = counts[1];
      state_.data_position = static_cast<std::uint64_t>(counts[2]);
      state_.skipped = counts[3];
      state_.evaluations_since_best = counts[4];
      state_.seconds = numbers[0];
      state_.best_validation = numbers[1];
      if (state_.step == 0) trainer_.hold_state();
    }
    if (state_.step == 0) trainer_.start_average();
    trainer_.upload();
    trainer_.release_state();
  }

  // This rank's rows of the next batches (the ranks of a group have the same), in pieces of at most micro_rows.
  std::vector<TokenBatch> next_micro_batches() {
    std::vector<TokenBatch> pieces;
    const std::int64_t group = groups_.group();
    const std::int64_t groups = groups_.groups();
    for (std::int64_t i = 0; i < options_.accumulate; ++i) {
      const std::int64_t rows = source_.next_rows();
      const std::int64_t end = rows * (group + 1) / groups;
      std::int64_t begin = rows * group / groups;
      const std::int64_t most = options_.micro_rows > 0 ? options_.micro_rows : rows;
      for (; begin < end; begin += most) pieces.push_back(source_.read(begin, std::min(begin + most, end)));
      source_.advance();
    }
    return pieces;
  }

  RunRecord step() {
    if (!options_.curriculum.empty()) {
      source_.limit_context(curriculum_tokens(options_.curriculum, state_.step + 1));
    }
    const std::vector<TokenBatch> micro_batches = next_micro_batches();
    const auto begin = Clock::now();
    const double rate = learning_rate(options_.schedule, options_.extensions, state_.step + 1);
    const StepResult result = trainer_.step(micro_batches, static_cast<float>(rate));
    const double seconds = seconds_since(begin);
    state_.step += 1;
    state_.tokens += result.tokens;
    state_.updates = trainer_.state().updates;
    state_.data_position = source_.position();
    state_.skipped += result.skipped ? 1 : 0;
    state_.seconds += seconds;
    if (result.skipped && first_rank()) {
      progress_.message(fmt::format("Step {}: the gradient is not finite; the step is skipped.", state_.step));
    }
    RunRecord record;
    record.step = state_.step;
    record.tokens = state_.tokens;
    record.loss = result.loss;
    record.learning_rate = rate;
    record.gradient_norm = result.gradient_norm;
    record.tokens_per_second = static_cast<double>(result.tokens) / seconds;
    record.seconds = state_.seconds;
    record.skipped = state_.skipped;
    for (const Epochs& epochs : source_.epochs()) {
      record.extra[epochs.dataset.empty() ? "epoch" : "epoch of " + epochs.dataset] = epochs.done;
    }
    if (options_.machine_limit > 0) {
      const double spared = head_flop_per_token_ * static_cast<double>(result.tokens - result.loss_tokens);
      const double flop = flop_per_token_ * static_cast<double>(result.tokens) - spared;
      record.extra["fraction_of_limit"] = flop / seconds / options_.machine_limit;
    }
    return record;
  }

  EvaluationResult evaluate(RunRecord& record) {
    const EvaluationResult result = trainer_.evaluate(validation_);
    record.validation_loss = result.loss;
    record.extra["validation_accuracy"] = result.accuracy;
    if (options_.optimizer.average_decay > 0) {
      const EvaluationResult averaged = trainer_.evaluate_average(validation_);
      record.extra["validation_ema_loss"] = averaged.loss;
      record.extra["validation_ema_accuracy"] = averaged.accuracy;
    }
    const bool better =
        std::isfinite(result.loss) && (state_.best_validation == 0 || result.loss < state_.best_validation);
    state_.evaluations_since_best = better ? 0 : state_.evaluations_since_best + 1;
    if (better) state_.best_validation = result.loss;
    return result;
  }

  void sample() {
    if (!first_rank()) return;
    trainer_.download_weights();
    const std::string text = options_.sample();
    progress_.message(fmt::format("Step {}: {}", state_.step, without_controls(text)));
    events_->write_text(state_.step, "samples/text", text);
  }

  [[nodiscard]] bool enough(const EvaluationResult& result) const {
    const bool reached = options_.target_accuracy > 0 && result.accuracy >= options_.target_accuracy;
    return reached || (options_.patience > 0 && state_.evaluations_since_best >= options_.patience);
  }

  void write(const RunRecord& record) {
    if (!first_rank()) return;
    log_->append(record);
    TensorBoardScalars scalars{{"train/loss", record.loss},
                               {"train/learning_rate", record.learning_rate},
                               {"train/gradient_norm", record.gradient_norm},
                               {"train/tokens_per_second", record.tokens_per_second}};
    if (record.validation_loss) scalars.emplace_back("validation/loss", *record.validation_loss);
    for (const auto& [name, value] : record.extra) scalars.emplace_back(tag_of(name), value);
    events_->write(record.step, scalars);

    if (record.validation_loss) shown_validation_ = record.validation_loss;
    ProgressState shown;
    shown.name = options_.name;
    shown.step = record.step;
    shown.total = options_.total_steps();
    shown.first_step = first_step_;
    shown.loss = record.loss;
    shown.validation_loss = shown_validation_;
    shown.learning_rate = record.learning_rate;
    shown.gradient_norm = record.gradient_norm;
    shown.tokens_per_second = record.tokens_per_second;
    shown.ranks = ranks();
    if (const auto epoch = record.extra.find("epoch"); epoch != record.extra.end()) shown.epoch = epoch->second;
    if (const auto share = record.extra.find("fraction_of_limit"); share != record.extra.end()) {
      shown.fraction_of_limit = share->second;
    }
    shown.seconds = seconds_since(start_);
    progress_.update(shown);
  }

  std::string save() {
    trainer_.hold_state();
    trainer_.download();
    std::string folder;
    if (first_rank()) {
      log_->sync();  // a checkpoint must not outlive the lines of its steps
      folder = save_checkpoint(options_.out, model_, trainer_.state(), state_, options_.keep, options_.tokenizer);
    }
    trainer_.release_state();
    return folder;
  }

  LanguageModel& model_;
  BatchSource& source_;
  std::span<const TokenBatch> validation_;
  const TrainingOptions& options_;
  Progress& progress_;
  Trainer trainer_;
  RankGroups groups_;
  TrainingState state_;
  std::string resumed_;  // the checkpoint it went on from
  FileDescriptor lock_;
  std::optional<RunLog> log_;  // of rank 0, like the events
  std::optional<TensorBoardWriter> events_;
  double flop_per_token_, head_flop_per_token_;
  std::int64_t first_step_ = 0;
  std::optional<double> shown_validation_;
  Clock::time_point start_;
};

}  // namespace

std::int64_t TrainingOptions::total_steps() const {
  std::int64_t steps = schedule.total;
  for (const LearningRateSchedule& extension : extensions) steps += extension.total;
  return steps;
}

TrainingOutcome run_training(LanguageModel& model, BatchSource& source, std::span<const TokenBatch> validation,
                             const TrainingOptions& options, const std::atomic<bool>& stop, Progress& progress) {
  options.schedule.check();
  for (const LearningRateSchedule& extension : options.extensions) extension.check();
  check_curriculum(options.curriculum);
  options.optimizer.check();
  constexpr std::int64_t kMostBatches = 1 << 16;
  require(options.accumulate > 0 && options.accumulate <= kMostBatches, "accumulate is {}, expected 1 to {}",
          options.accumulate, kMostBatches);
  const auto check_count = [](const char* name, std::int64_t count, const char* zero) {
    require(count >= 0, "{} is {}, expected 0 ({}) or more", name, count, zero);
  };
  check_count("eval-every", options.eval_every, "only at the end");
  check_count("save-every", options.save_every, "at each validation");
  check_count("patience", options.patience, "never to stop early");
  require(options.target_accuracy >= 0 && options.target_accuracy <= 1, "target-accuracy is {}, expected 0 to 1",
          options.target_accuracy);
  check_keep(options.keep);
  Run run(model, source, validation, options, progress);
  return run.go(stop);
}

}  // namespace qdelta
