#include "cli/generate_common.h"

#include <CLI/CLI.hpp>

#include "cli/model_folder.h"
#include "cli/several_values.h"
#include "cli/validators.h"
#include "io/atomic_file.h"
#include "model/checkpoint.h"

namespace qdelta {

Loaded::Loaded(GenerateFlags& flags)
    : model(load_model(flags.model = model_folder(flags.model))),
      tokenizer(tokenizer_of(model->config(), flags.model, flags.tokenizer)) {}

void check_save_state(const GenerateFlags& flags) {
  if (flags.save_state.empty()) return;
  const AtomicFile probe(flags.save_state);  // leaves no trace
}

void add_generation_flags(CLI::App& command, GenerateFlags& flags, const std::string& max_tokens,
                          const std::string& seed) {
  command.add_option("--model", flags.model, kModelHelp)->required();
  command.add_option("--tokenizer", flags.tokenizer, "Another tokenizer than the model folder's");
  command.add_option("--max-tokens", flags.options.max_tokens, max_tokens)->capture_default_str();
  SamplingOptions& sampling = flags.options.sampling;
  command.add_option("--temperature", sampling.temperature, "0: always the most likely token")->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Only the k most likely tokens; 0: all")->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p, "Only the most likely tokens whose probabilities together reach p; 1: all")
      ->capture_default_str();
  command
      .add_option("--min-p", sampling.min_p,
                  "Only tokens at least this likely, relative to the most likely one; 0: all")
      ->capture_default_str();
  command
      .add_option("--repetition-penalty", sampling.repetition_penalty,
                  "Above 1: avoid tokens that were used already; 1: no penalty")
      ->capture_default_str();
  command.add_option("--seed", sampling.seed, seed)->capture_default_str()->check(whole_number());
  several_values(
      command.add_option("--stop", flags.options.stop, "Text that ends a sequence; may be given several times"));
  flags.device.add_to(command);
  command.add_option("--load-state", flags.load_state, "Continue from a state that --save-state left");
  command.add_option("--save-state", flags.save_state, "Keep the recurrent state in this file at the end");
}

}  // namespace qdelta
