#include "cli/training_flags.h"

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "cli/recompute_flag.h"
#include "cli/several_values.h"
#include "cli/validators.h"
#include "data/mqar.h"

namespace qdelta {

namespace {

// TOKENS:STEPS
CurriculumStage stage_of(const std::string& text) {
  CurriculumStage stage;
  const char* end = text.data() + text.size();
  const auto tokens = std::from_chars(text.data(), end, stage.tokens);
  const bool colon = tokens.ec == std::errc() && tokens.ptr != end && *tokens.ptr == ':';
  const auto steps = colon ? std::from_chars(tokens.ptr + 1, end, stage.steps) : tokens;
  require(colon && steps.ec == std::errc() && steps.ptr == end && stage.tokens > 0 && stage.steps > 0,
          "--curriculum {}: expected TOKENS:STEPS, such as 512:1000", text);
  return stage;
}

}  // namespace

ModelConfig TrainingFlags::config_for(const TrainingData& training_data) const {
  ModelConfig result = model.config(training_data.source->vocab_size());
  require(result.vocab_size >= training_data.source->vocab_size(), "the model knows {} tokens, but the data has {}",
          result.vocab_size, training_data.source->vocab_size());
  // Of shards without their tokenizer nothing is known but what a config file says.
  if (training_data.tokenizer.empty() && mqar.empty() && !model.file.empty()) return result;
  result.bos_token_id = training_data.bos;
  result.eos_token_id = training_data.eos;
  result.pad_token_id = training_data.pad;
  return result;
}

std::int64_t TrainingFlags::batch_rows(int groups) const {
  if (run_rows > 0) return run_rows;
  require(rows > 0, "a batch must have at least one row, not {}", rows);
  if (batch_tokens == 0) return rows * groups;
  require(mqar.empty(), "--batch-tokens counts rows of text; with --mqar give --rows");
  require(batch_tokens > 0 && batch_tokens % seq_len == 0, "--batch-tokens {} are no whole number of rows of {}",
          batch_tokens, seq_len);
  require(run.accumulate == 1, "--batch-tokens are of an update: leave --accumulate out");
  return batch_tokens / seq_len;
}

void TrainingFlags::resolve() {
  run.schedule = schedule();
  run.schedule.check();
  run.optimizer.decayed.embeddings = decay_embeddings;
  require(decay_on == "all" || decay_on == "matrices", "--decay-on {}: there is matrices and all", decay_on);
  run.optimizer.decayed.which = decay_on == "all" ? DecayedParameters::Which::all : DecayedParameters::Which::matrices;
  run.micro_rows = rows;
  run.curriculum.clear();
  for (const std::string& stage : curriculum) run.curriculum.push_back(stage_of(stage));
  check_curriculum(run.curriculum);
}

void TrainingFlags::choose_warmup(CLI::App& command) {
  CLI::Option* option = command.get_option("--warmup");
  const std::int64_t tenth = std::max<std::int64_t>(steps, 0) / 10;
  if (option->count() > 0 || tenth >= warmup) return;
  option->add_result(fmt::format("{}", tenth));
  option->run_callback();
  warmup_shortened = true;
}

std::string TrainingFlags::warmup_note() const {
  if (!warmup_shortened) return "";
  return fmt::format("Warm-up of {} steps, a tenth of {}; --warmup says otherwise.", warmup, steps);
}

std::int64_t TrainingFlags::row_tokens() const {
  if (mqar.empty()) return seq_len;
  std::int64_t longest = 0;
  for (const MqarTask& task : mqar_tasks_of(mqar, rewrites, mqar_training_tasks)) {
    longest = std::max(longest, task.length);
  }
  return longest;
}

LearningRateSchedule TrainingFlags::schedule() const {
  return {lr, warmup, steps, min_lr_ratio, schedule_named(schedule_kind), decay_steps};
}

std::string TrainingFlags::recipe(const BatchSource& source, int groups) const {
  std::string result = fmt::format(
      "{}; {} batches of {} rows a step, {} steps, rate {} after {} steps of warm-up down to {} of it, seed {}, "
      "AdamW {} {} {}, decay {}, clip {}",
      source.describe(), run.accumulate, batch_rows(groups), steps, lr, warmup, min_lr_ratio, seed, run.optimizer.beta1,
      run.optimizer.beta2, run.optimizer.epsilon, run.optimizer.weight_decay, run.optimizer.clip);
  // Only what differs from the one way that there was in version 0.1, so that its runs are known again.
  if (schedule_kind != "cosine") result += fmt::format(", schedule {}", schedule_kind);
  if (decay_steps > 0) result += fmt::format(", decay over {} steps", decay_steps);
  if (decay_on != "all") result += decay_embeddings ? ", matrices decay" : ", matrices but embeddings decay";
  if (!curriculum.empty()) result += fmt::format(", curriculum {}", fmt::join(curriculum, " "));
  if (run.optimizer.average_decay > 0) result += fmt::format(", ema {}", run.optimizer.average_decay);
  return result;
}

void TrainingFlags::add_to(CLI::App& command) {
  const auto add = [&](const char* group, const char* name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->group(group);
  };
  add("Run", "--config", config, "TOML file of settings, each named like a flag; flags win over it");
  add("Run", "--out", run.out,
      "Folder for checkpoints, log, TensorBoard events and the picture of the loss. Required, here or in --config");
  device.add_to(command, "Run");
  add("Run", "--seed", seed, "Of initial weights and order of data")->capture_default_str()->check(whole_number());

  add("Data", "--text", text,
      "A file of text or JSON lines to train on, also with gzip, xz or zstd; its last twentieth is for validation. One "
      "of --text, --data and --mqar is required");
  add("Data", "--text-key", text_key, "The member of a JSON line that holds the text (text)");
  command.add_flag("--bytes", text_bytes, "Take a --text that is not UTF-8 as it is")->group("Data");
  several_values(add("Data", "--data", data,
                     "Token shards made by qdelta tokenize; A:0.7 B:0.3 mixes them, 7 rows of A to 3 of B"));
  several_values(add("Data", "--validation", validation, "Token shards to validate on"));
  add("Data", "--mqar", mqar, "Synthetic recall: LENGTH:PAIRS:EXAMPLES, or 'paper' for the published mixture");
  add("Data", "--rewrites", rewrites,
      "With --mqar: keys written again with a new value, of which the last is the answer")
      ->capture_default_str();
  add("Data", "--tokenizer", tokenizer, "Tokenizer of the data, kept with the model; default for --text: bytes");
  add("Data", "--seq-len", seq_len, "Tokens of a row")->capture_default_str();
  add("Data", "--rows", rows, "Rows (examples) of a batch; under mpirun, of each process")->capture_default_str();
  add("Data", "--batch-tokens", batch_tokens,
      "Tokens of an update, over all processes; each runs its part --rows at a time. 0: --rows and --accumulate decide")
      ->capture_default_str();
  add("Data", "--curriculum", curriculum,
      "Sequence lengths to begin with, TOKENS:STEPS each: 256:500 512:500 has sequences of 256 for 500 steps, then of "
      "512, then whole rows");
  add("Data", "--reset-at-documents", reset_at_documents,
      "true: a sequence ends with its document, and the state is empty at the start of the next")
      ->capture_default_str();
  add("Data", "--context-len", context_len,
      "Most tokens of a sequence, after which the state is empty again; 0: no limit")
      ->capture_default_str();
  add("Data", "--validation-rows", validation_rows, "Rows to validate on; 0: all")->capture_default_str();

  model.add_to(command);

  add("Training", "--steps", steps, "Updates in all")->capture_default_str();
  add("Training", "--accumulate", run.accumulate, "Batches per update")->capture_default_str();
  add("Training", "--schedule", schedule_kind, "Of the learning rate after the warm-up: " + schedule_names())
      ->capture_default_str();
  add("Training", "--lr", lr, "Peak learning rate")->capture_default_str();
  add("Training", "--warmup", warmup, "Steps up to the peak; unless given, no more than a tenth of --steps")
      ->capture_default_str();
  add("Training", "--min-lr-ratio", min_lr_ratio, "Share of the peak at the end")->capture_default_str();
  add("Training", "--decay-steps", decay_steps, "wsd: steps of the decay at the end; 0: a tenth of all")
      ->capture_default_str();
  add("Training", "--beta1", run.optimizer.beta1, "AdamW")->capture_default_str();
  add("Training", "--beta2", run.optimizer.beta2, "AdamW")->capture_default_str();
  add("Training", "--eps", run.optimizer.epsilon, "AdamW")->capture_default_str();
  add("Training", "--weight-decay", run.optimizer.weight_decay, "AdamW")->capture_default_str();
  add("Training", "--decay-on", decay_on, "matrices: not on norms, biases, A_log and dt_bias; all: as published")
      ->capture_default_str();
  add("Training", "--decay-embeddings", decay_embeddings, "With matrices: whether the embeddings decay too")
      ->capture_default_str();
  add("Training", "--clip", run.optimizer.clip, "Largest gradient norm; 0: none")->capture_default_str();
  add("Training", "--ema", run.optimizer.average_decay,
      "Decay of an exponential moving average of the weights, such as 0.999, validated too and saved as "
      "CHECKPOINT/ema; 0: none")
      ->capture_default_str();
  add_recompute(command, run.recompute)->group("Training");
  add("Training", "--eval-every", run.eval_every, "Steps between validations; 0: at the end")->capture_default_str();
  add("Training", "--save-every", run.save_every, "Steps between checkpoints; 0: at each validation")
      ->capture_default_str();
  add("Training", "--keep", run.keep, "Checkpoints to keep")->capture_default_str();
  add("Training", "--patience", run.patience, "Stop after this many validations without a better one; 0: never")
      ->capture_default_str();
  add("Training", "--target-accuracy", run.target_accuracy, "Stop when the validation accuracy reaches it; 0: never")
      ->capture_default_str();
}

}  // namespace qdelta
