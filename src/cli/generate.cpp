// qdelta generate: continues prompts. qdelta chat: the same in a loop that keeps the state between turns.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "cli/cli.h"
#include "cli/device_flags.h"
#include "infer/generator.h"
#include "infer/prompt.h"
#include "infer/state_file.h"
#include "model/checkpoint.h"

namespace qdelta {
namespace {

struct GenerateFlags {
  std::string model, tokenizer, load_state, save_state;
  std::vector<std::string> prompts, prompt_files;
  GenerationOptions options;
  int num_samples = 1;
  DeviceFlags device;
  bool stream = false;
  bool bos = true;
};

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(Status::io, "cannot read {}", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A model that is ready to speak.
struct Loaded {
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Tokenizer> tokenizer;

  explicit Loaded(const GenerateFlags& flags)
      : model(load_model(flags.model)),
        tokenizer(load_tokenizer(flags.tokenizer.empty() ? flags.model : flags.tokenizer)) {
    require(tokenizer->vocab_size() <= model->config().vocab_size,
            "the tokenizer has {} tokens, but the model knows only {}: they do not belong together",
            tokenizer->vocab_size(), model->config().vocab_size);
  }
};

void add_common(CLI::App* command, GenerateFlags& flags) {
  command->add_option("--model", flags.model, "Model folder: config.json, model.safetensors, tokenizer")->required();
  command->add_option("--tokenizer", flags.tokenizer, "Another tokenizer than the model folder's");
  command
      ->add_option("--max-tokens", flags.options.max_tokens,
                   "Most tokens to generate; 0 with --save-state: only read the prompt")
      ->capture_default_str();
  SamplingOptions& sampling = flags.options.sampling;
  command->add_option("--temperature", sampling.temperature, "0: always the most likely token")->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "Only the k most likely tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "Only the most likely that together reach p")->capture_default_str();
  command->add_option("--min-p", sampling.min_p, "Only those at least so likely, relative to the most likely")
      ->capture_default_str();
  command->add_option("--repetition-penalty", sampling.repetition_penalty, "Above 1: avoid tokens already used")
      ->capture_default_str();
  command->add_option("--seed", sampling.seed, "The same seed gives the same text")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--stop", flags.options.stop, "Text that ends a sequence; may be given several times");
  flags.device.add_to(*command);
  command->add_option("--load-state", flags.load_state, "Continue from a state that --save-state left");
  command->add_option("--save-state", flags.save_state, "Keep the recurrent state in this file at the end");
}

void print_speed(const GenerationSpeed& speed) {
  const auto rate = [](std::int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  fmt::print(stderr, "prompt {} tokens at {:.0f}/s, generated {} tokens at {:.0f}/s\n", speed.prompt_tokens,
             rate(speed.prompt_tokens, speed.prompt_seconds), speed.decoded_tokens,
             rate(speed.decoded_tokens, speed.decode_seconds));
}

// What has been read into a state, to be written beside it.
struct Reading {
  SavedState info;

  void add(std::span<const std::int32_t> tokens) {
    info.tokens += static_cast<std::int64_t>(tokens.size());
    info.token_hash = hash_tokens(info.token_hash, tokens);
  }
  // After generating: all but the last token have been read.
  void add_generated(const Generated& generated) {
    const std::span<const std::int32_t> tokens = generated.tokens;
    add(tokens.first(tokens.size() - 1));
    info.pending = tokens.back();
  }
  // The tokens to read next: the pending one first.
  std::vector<std::int32_t> continued(std::vector<std::int32_t> tokens) {
    if (info.pending >= 0) tokens.insert(tokens.begin(), info.pending);
    info.pending = -1;
    return tokens;
  }
};

void keep_state(const std::string& path, const LanguageModel& model, const ModelStates& states,
                const SavedState& info) {
  save_state(path, model, states, 0, info);
  fmt::print(stderr, "state after {} tokens kept in {}\n", info.tokens, path);
}

void run_generate(GenerateFlags& flags) {
  flags.options.sampling.check();
  for (const std::string& path : flags.prompt_files) flags.prompts.push_back(read_text(path));
  const bool continues = !flags.load_state.empty();
  if (flags.prompts.empty()) {
    require(continues, "nothing to continue: give --prompt, --prompt-file or --load-state");
    flags.prompts.emplace_back();
  }
  const bool only_reads = flags.options.max_tokens == 0;
  require(!only_reads || !flags.save_state.empty(), "max-tokens is 0: then there must be a --save-state to read for");
  require(flags.num_samples > 0, "num-samples is {}, expected at least 1", flags.num_samples);
  const Loaded loaded(flags);
  const std::size_t count = flags.prompts.size() * static_cast<std::size_t>(flags.num_samples);
  require(flags.save_state.empty() || count == 1, "--save-state keeps one state, but there are {} sequences", count);

  const Device device = flags.device.open();
  ModelStates states(loaded.model->config(), static_cast<std::int64_t>(count), device);
  Reading reading;
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::int64_t> slots;
  for (std::size_t i = 0; i < count; ++i) {
    slots.push_back(static_cast<std::int64_t>(i));
    if (continues && i == 0) reading.info = load_state(flags.load_state, *loaded.model, states, 0);
    if (continues && i > 0) states.copy(states, 0, slots[i]);
    const std::string& text = flags.prompts[i / static_cast<std::size_t>(flags.num_samples)];
    Reading start = reading;
    prompts.push_back(start.continued(encode_prompt(*loaded.tokenizer, text, flags.bos && !continues)));
    require(!prompts.back().empty(), "the prompt has no tokens, and this tokenizer has no begin-of-text token");
  }
  reading.info.pending = -1;
  reading.add(prompts.front());

  Generator generator(*loaded.model, *loaded.tokenizer, device);
  if (only_reads) {
    static_cast<void>(generator.read(prompts.front(), states, 0));
    print_speed(generator.speed());
    keep_state(flags.save_state, *loaded.model, states, reading.info);
    return;
  }
  const bool live = flags.stream && count == 1;
  if (live) fmt::print("{}", flags.prompts.front());
  const std::vector<Generated> results =
      generator.generate(prompts, flags.options, states, slots, [&](std::size_t, const std::string& piece) {
        if (!live) return;
        fmt::print("{}", piece);
        std::fflush(stdout);
      });
  for (std::size_t i = 0; i < results.size() && !live; ++i) {
    if (count > 1) fmt::print("--- {} ---\n", i + 1);
    fmt::print("{}{}\n", flags.prompts[i / static_cast<std::size_t>(flags.num_samples)], results[i].text);
  }
  if (live) fmt::print("\n");
  print_speed(generator.speed());
  if (!flags.save_state.empty()) {
    reading.add_generated(results.front());
    keep_state(flags.save_state, *loaded.model, states, reading.info);
  }
}

void run_chat(GenerateFlags& flags) {
  const Loaded loaded(flags);
  const Device device = flags.device.open();
  ModelStates states(loaded.model->config(), 1, device);
  Reading reading;
  const std::vector<std::int64_t> slots{0};
  if (!flags.load_state.empty()) reading.info = load_state(flags.load_state, *loaded.model, states, 0);
  Generator generator(*loaded.model, *loaded.tokenizer, device);
  GenerationOptions options = flags.options;
  fmt::print(
      "Type a line and the model goes on from it; it remembers everything so far in its state.\n"
      "/reset forgets, /save FILE keeps the state, /quit or Ctrl-D ends.\n");
  std::string line;
  while (fmt::print("> "), std::fflush(stdout), std::getline(std::cin, line)) {
    if (line == "/quit") break;
    if (line == "/reset") {
      states.clear(0);
      reading = {};
      continue;
    }
    if (line.rfind("/save ", 0) == 0) {
      try {
        save_state(line.substr(6), *loaded.model, states, 0, reading.info);
        fmt::print("kept the state after {} tokens in {}\n", reading.info.tokens, line.substr(6));
      } catch (const Error& error) {
        fmt::print("{}\n", error.what());
      }
      continue;
    }
    std::vector<std::int32_t> tokens = encode_prompt(*loaded.tokenizer, line, flags.bos && reading.info.tokens == 0);
    tokens = reading.continued(std::move(tokens));
    if (tokens.empty()) continue;
    reading.add(tokens);
    const auto results =
        generator.generate({tokens}, options, states, slots, [](std::size_t, const std::string& piece) {
          fmt::print("{}", piece);
          std::fflush(stdout);
        });
    fmt::print("\n");
    reading.add_generated(results.front());
    options.sampling.seed += 1;  // another turn, other numbers
  }
  if (!flags.save_state.empty()) save_state(flags.save_state, *loaded.model, states, 0, reading.info);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Continue prompts with a trained model");
  add_common(command, *flags);
  command->add_option("--prompt", flags->prompts, "Text to continue; several are decoded as one batch");
  command->add_option("--prompt-file", flags->prompt_files, "The same from files, - for standard input");
  command->add_option("--num-samples", flags->num_samples, "Continuations of each prompt")->capture_default_str();
  command->add_flag("--stream", flags->stream, "Print the text as it comes (one sequence)");
  command->add_flag("!--no-bos", flags->bos, "Do not begin with the begin-of-text token");
  command->footer(
      "Examples:\n"
      "  qdelta generate --model run/checkpoints/step-00001000 --prompt \"Once upon a time\" --stream\n"
      "  qdelta generate --model M --prompt-file book.txt --save-state book.state --max-tokens 0\n"
      "  qdelta generate --model M --load-state book.state --prompt \" And then\"     (the book is not read again)");
  command->callback([flags] { run_generate(*flags); });
}

void add_chat(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a model, turn by turn; its state is kept between turns");
  add_common(command, *flags);
  command->add_flag("!--no-bos", flags->bos, "Do not begin with the begin-of-text token");
  command->callback([flags] { run_chat(*flags); });
}

}  // namespace qdelta
