// qdelta generate: continues prompts.
#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <iostream>
#include <iterator>
#include <memory>

#include "cli/cli.h"
#include "cli/generate_common.h"
#include "cli/several_values.h"
#include "infer/generator.h"
#include "infer/prompt.h"
#include "infer/state_file.h"
#include "io/regular_file.h"

namespace qdelta {
namespace {

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  return read_text_file(path);
}

// The counts are of tokens. The rates are of the work: a sequence's first token comes of reading the prompt, and a
// prompt that is only read leaves its last token for later.
void print_speed(const GenerationSpeed& speed, std::size_t prompt, std::size_t generated) {
  const auto rate = [](std::int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? fmt::format(" at {:.0f}/s", static_cast<double>(tokens) / seconds) : "";
  };
  fmt::print(stderr, "prompt {} tokens{}, generated {} tokens{}\n", prompt,
             rate(speed.prompt_tokens, speed.prompt_seconds), generated,
             rate(speed.decoded_tokens, speed.decode_seconds));
}

const char* why(EndReason end) {
  switch (end) {
    case EndReason::eos:
      return "eos";
    case EndReason::stop_token:
    case EndReason::stop_string:
      return "stop";
    case EndReason::length:
      return "length";
    case EndReason::none:
    case EndReason::not_finite:
      break;
  }
  return "not_finite";
}

void print_json(const GenerateFlags& flags, const std::vector<std::vector<std::int32_t>>& prompts,
                const std::vector<Generated>& results, const GenerationSpeed& speed) {
  nlohmann::ordered_json json{{"version", QDELTA_VERSION}, {"model", flags.model}};
  for (std::size_t i = 0; i < results.size(); ++i) {
    json["sequences"].push_back({{"prompt", flags.prompts[i / static_cast<std::size_t>(flags.num_samples)]},
                                 {"prompt_tokens", prompts[i]},
                                 {"text", results[i].text},
                                 {"tokens", results[i].tokens},
                                 {"finish_reason", why(results[i].end)}});
  }
  json["speed"] = {{"prompt_tokens", speed.prompt_tokens},
                   {"prompt_seconds", speed.prompt_seconds},
                   {"decoded_tokens", speed.decoded_tokens},
                   {"decode_seconds", speed.decode_seconds}};
  // A path, a prompt or a model's bytes may be no UTF-8.
  fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void keep_state(const std::string& path, const LanguageModel& model, const ModelStates& states,
                const Reading& reading) {
  save_state(path, model, states, 0, reading.info);
  fmt::print(stderr, "state after {} tokens kept in {}\n", reading.length(), path);
}

// The number of sequences.
std::size_t check(const GenerateFlags& flags) {
  flags.options.sampling.check();
  const std::int64_t most = flags.options.max_tokens;
  require(most >= 0, "max-tokens is {}, expected at least 1, or 0 with --save-state", most);
  require(most > 0 || !flags.save_state.empty(), "max-tokens is 0: then there must be a --save-state to read for");
  require(flags.num_samples > 0, "num-samples is {}, expected at least 1", flags.num_samples);
  const std::size_t count = flags.prompts.size() * static_cast<std::size_t>(flags.num_samples);
  check_save_state(flags);
  require(flags.save_state.empty() || count == 1, "--save-state keeps one state, but there are {} sequences", count);
  require(!flags.stream || !flags.json, "--stream and --json are two ways to print: give one of them");
  require(!flags.stream || count == 1, "--stream shows one sequence as it comes, but there are {}: leave it out",
          count);
  return count;
}

// Why there is nothing to read, and what would help.
std::string without_tokens(const GenerateFlags& flags, const Tokenizer& tokenizer) {
  if (!flags.load_state.empty()) return flags.load_state + " keeps no last token to go on from: give a --prompt";
  if (!tokenizer.bos()) return "the prompt has no tokens, and this tokenizer has no begin-of-text token";
  return "the prompt has no tokens: give some text, or leave --no-bos out";
}

// Reads a prompt for those who go on from it later. Its last token is left to them.
void run_reading(const GenerateFlags& flags, const LanguageModel& model, Generator& generator,
                 const ModelStates& states, Reading reading, std::span<const std::int32_t> prompt) {
  if (prompt.size() > 1) static_cast<void>(generator.read(prompt.first(prompt.size() - 1), 0));
  reading.add_but_last(prompt);
  print_speed(generator.speed(), prompt.size(), 0);
  keep_state(flags.save_state, model, states, reading);
}

void run_generate(GenerateFlags& flags) {
  for (const std::string& path : flags.prompt_files) flags.prompts.push_back(read_text(path));
  const bool continues = !flags.load_state.empty();
  if (flags.prompts.empty()) {
    require(continues, "nothing to continue: give --prompt, --prompt-file or --load-state");
    flags.prompts.emplace_back();
  }
  const std::size_t count = check(flags);
  const Loaded loaded(flags);

  const Device device = flags.device.open();
  ModelStates states(loaded.model->config(), static_cast<std::int64_t>(count), device);
  Reading reading;
  if (continues) reading.info = load_state(flags.load_state, *loaded.model, states, 0);
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::int64_t> slots;
  std::size_t prompt_tokens = 0;
  for (std::size_t i = 0; i < count; ++i) {
    slots.push_back(static_cast<std::int64_t>(i));
    if (continues && i > 0) states.copy(states, 0, slots[i]);
    const std::string& text = flags.prompts[i / static_cast<std::size_t>(flags.num_samples)];
    Reading start = reading;
    prompts.push_back(start.continued(encode_prompt(*loaded.tokenizer, text, flags.bos && reading.nothing())));
    require(!prompts.back().empty(), "{}", without_tokens(flags, *loaded.tokenizer));
    prompt_tokens += prompts.back().size();
  }
  reading.info.pending = -1;

  Generator generator(*loaded.model, *loaded.tokenizer, states);
  if (flags.options.max_tokens == 0) {
    run_reading(flags, *loaded.model, generator, states, reading, prompts.front());
    return;
  }
  if (flags.stream) fmt::print("{}", flags.prompts.front());
  const std::vector<Generated> results =
      generator.generate(prompts, flags.options, slots, [&](std::size_t, const std::string& text) {
        if (!flags.stream) return;
        fmt::print("{}", text);
        std::fflush(stdout);
      });
  if (flags.json) print_json(flags, prompts, results, generator.speed());
  for (std::size_t i = 0; i < results.size() && !flags.stream && !flags.json; ++i) {
    if (count > 1) fmt::print("--- {} ---\n", i + 1);
    fmt::print("{}{}\n", flags.prompts[i / static_cast<std::size_t>(flags.num_samples)], results[i].text);
  }
  if (flags.stream) fmt::print("\n");
  std::size_t generated = 0;
  for (const Generated& result : results) generated += result.tokens.size();
  print_speed(generator.speed(), prompt_tokens, generated);
  if (!flags.save_state.empty()) {
    reading.add(prompts.front());
    reading.add_but_last(results.front().tokens);
    keep_state(flags.save_state, *loaded.model, states, reading);
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Continue prompts with a trained model");
  add_generation_flags(*command, *flags, "Most tokens to generate; 0 with --save-state: only read the prompt",
                       "The same seed gives the same text. Of several prompts or samples each has random\n"
                       "numbers of its own: only the first is as it would be alone");
  several_values(command->add_option(
      "--prompt", flags->prompts,
      "Text to continue; several are decoded as one batch. One of this, --prompt-file and --load-state is required"));
  several_values(
      command->add_option("--prompt-file", flags->prompt_files, "The same from files, - for standard input"));
  command->add_option("--num-samples", flags->num_samples, "Continuations of each prompt")->capture_default_str();
  command->add_flag("--stream", flags->stream, "Print the text as it comes; for one prompt and one sample");
  command->add_flag("!--no-bos", flags->bos, "Do not begin with the begin-of-text token");
  command->add_flag("--json", flags->json, "Print JSON: each sequence with its tokens and why it ended, and the speed");
  command->footer(
      "Examples:\n"
      "  qdelta generate --model run --prompt \"Once upon a time\" --stream\n"
      "  qdelta generate --model run --prompt A --prompt B --json | jq -r '.sequences[].text'\n"
      "  qdelta generate --model M --prompt-file book.txt --save-state book.state --max-tokens 0\n"
      "  qdelta generate --model M --load-state book.state                           (the book is not read again)\n"
      "  qdelta generate --model M --load-state book.state --prompt \" And then\"");
  command->callback([flags] { run_generate(*flags); });
}

}  // namespace qdelta
