// qdelta analyze: what happens inside a model's memory, over real text.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <memory>

#include "analyze/analysis.h"
#include "analyze/probe.h"
#include "analyze/report.h"
#include "cli/cli.h"
#include "cli/device_flags.h"
#include "cli/model_folder.h"
#include "cli/stop_signal.h"
#include "data/documents.h"
#include "data/tokenizer.h"
#include "model/checkpoint.h"
#include "train/progress.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

struct AnalyzeFlags {
  std::string model, tokenizer, data, out, layers, heads;
  std::string text_key = "text";
  bool bytes = false;
  std::int64_t tokens = 4096, length = 1024, history = 512;
  DeviceFlags device;
};

constexpr std::int64_t kDefaultLayers = 3;  // as the paper's figures have
constexpr std::int64_t kShortest = 16;      // tokens; a shorter rest of a document says little

// "0,5,10-12" or "all", each below `count`, sorted.
std::vector<std::int64_t> numbers_of(const std::string& text, std::int64_t count, const char* flag) {
  std::vector<std::int64_t> chosen;
  if (text == "all") {
    for (std::int64_t i = 0; i < count; ++i) chosen.push_back(i);
    return chosen;
  }
  const auto number = [&](const std::string& part) {
    std::int64_t value = 0;
    const char* end = part.data() + part.size();
    const auto read = std::from_chars(part.data(), end, value);
    require(read.ec == std::errc() && read.ptr == end,
            "{} is '{}', expected numbers with commas between, ranges like 3-5, or 'all'", flag, text);
    require(value >= 0 && value < count, "{} names {}, but the model has 0 to {}", flag, value, count - 1);
    return value;
  };
  for (const std::string& part : CLI::detail::split(text, ',')) {
    const std::size_t dash = part.find('-', 1);
    const std::int64_t first = number(part.substr(0, dash));
    const std::int64_t last = dash == std::string::npos ? first : number(part.substr(dash + 1));
    require(first <= last, "{}: {} goes backwards", flag, part);
    for (std::int64_t i = first; i <= last; ++i) chosen.push_back(i);
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

// All of a small model's layers; of a deep one's as many as fit in a figure, evenly through its depth.
std::vector<std::int64_t> default_layers(std::int64_t count) {
  std::vector<std::int64_t> layers;
  if (count <= kDefaultLayers) return numbers_of("all", count, "");
  for (std::int64_t i = 1; i <= kDefaultLayers; ++i) layers.push_back(i * count / (kDefaultLayers + 1));
  return layers;
}

// Documents in pieces of at most `length` tokens, `tokens` in all.
analyze::Sequences read_sequences(const AnalyzeFlags& flags, const Tokenizer& tokenizer, std::int64_t vocabulary) {
  DocumentOptions options;
  options.text_key = flags.text_key;
  options.bytes = flags.bytes ? TextBytes::any : TextBytes::utf8;
  DocumentReader reader(flags.data, options);
  analyze::Sequences sequences;
  std::int64_t left = flags.tokens;
  std::string document;
  while (left > 0 && reader.next(document)) {
    // Far more text than the tokens that are wanted need not be encoded.
    const std::size_t enough = static_cast<std::size_t>(left) * 32 + 4096;
    if (document.size() > enough) document.resize(std::min(document.find_first_of(" \n", enough - 1024), enough));
    const std::vector<std::int32_t> ids = tokenizer.encode(document);
    for (std::size_t begin = 0; begin < ids.size() && left > 0;) {
      const auto count = std::min({static_cast<std::int64_t>(ids.size() - begin), flags.length, left});
      if (count >= kShortest || sequences.empty()) {
        sequences.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                               ids.begin() + static_cast<std::ptrdiff_t>(begin) + count);
        left -= count;
      }
      begin += static_cast<std::size_t>(count);
    }
  }
  require(!sequences.empty(), "{} has no text", flags.data);
  for (const std::vector<std::int32_t>& sequence : sequences) {
    for (const std::int32_t id : sequence) {
      require(id < vocabulary, "the tokenizer gives token {}, but the model knows only {}", id, vocabulary);
    }
  }
  return sequences;
}

// A progress line for counted work.
class CountedWork {
 public:
  CountedWork(std::string name, std::int64_t total)
      : name_(std::move(name)), total_(total), start_(std::chrono::steady_clock::now()) {}

  void done(std::int64_t count) {
    ProgressState state;
    state.name = name_;
    state.step = count;
    state.total = total_;
    state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    progress_.update(state);
  }

 private:
  std::string name_;
  std::int64_t total_;
  std::chrono::steady_clock::time_point start_;
  Progress progress_;
};

[[noreturn]] void stopped() {
  fmt::print("Stopped; nothing was written.\n");
  throw CLI::RuntimeError(130);  // as a shell reports Ctrl-C
}

void run_analyze(AnalyzeFlags& flags) {
  const StopSignal stop;
  require(flags.tokens >= 2, "tokens is {}, expected at least 2", flags.tokens);
  require(flags.length >= 2, "length is {}, expected at least 2", flags.length);
  require(flags.history >= 1, "history is {}, expected at least 1", flags.history);
  flags.model = model_folder(flags.model);
  const auto model = load_model(flags.model);
  const ModelConfig& config = model->config();
  const auto layers = flags.layers.empty() ? default_layers(config.num_hidden_layers)
                                           : numbers_of(flags.layers, config.num_hidden_layers, "--layers");
  analyze::AnalysisOptions options;
  if (!flags.heads.empty()) options.heads = numbers_of(flags.heads, config.value_heads(), "--heads");
  options.history = flags.history;
  options.threads = flags.device.threads;
  const auto tokenizer = load_tokenizer(flags.tokenizer.empty() ? flags.model : flags.tokenizer);
  const analyze::Sequences sequences = read_sequences(flags, *tokenizer, config.vocab_size);
  std::int64_t tokens = 0;
  for (const auto& sequence : sequences) tokens += static_cast<std::int64_t>(sequence.size());
  const Device device = flags.device.open();

  std::vector<analyze::LayerTrace> traces;
  {
    CountedWork work("reading", tokens);
    traces = analyze::probe(*model, device, sequences, layers, stop.raised(), [&](std::int64_t n) { work.done(n); });
  }
  if (traces.empty()) stopped();
  std::optional<analyze::Analysis> analysis;
  {
    CountedWork work("heads", analyze::head_count(traces, options));
    analysis = analyze::analyse(traces, options, stop.raised(), [&](std::int64_t n) { work.done(n); });
  }
  if (!analysis) stopped();

  const RuleTraits& traits = traits_of(traces.front().rule);
  analyze::ReportHead head;
  head.title = fmt::format("Inside {}", fs::path(flags.model).lexically_normal().string());
  head.facts = {{"rule", fmt::format("{}: {}", traits.title, traits.formula)},
                {"model", fmt::format("{} layers of {} heads, keys of {}, values of {}", config.num_hidden_layers,
                                      config.value_heads(), config.head_dim, config.value_dim())},
                {"layers looked at", fmt::format("{}", fmt::join(layers, ", "))},
                {"heads looked at", flags.heads.empty() ? "all" : fmt::format("{}", fmt::join(options.heads, ", "))},
                {"text", fmt::format("{}: {} tokens in {} sequences of at most {}, each from an empty memory",
                                     fs::path(flags.data).filename().string(), tokens, sequences.size(), flags.length)},
                {"time-evolved keys", fmt::format("over the first {} tokens of each sequence", flags.history)}};
  const analyze::Written written = analyze::write_report(*analysis, head, flags.out);

  for (const analyze::Section& section : analysis->sections) {
    fmt::print("{}\n", section.title);
    for (const auto& [name, value] : section.facts) fmt::print("  {}: {}\n", name, value);
  }
  for (const analyze::LeftOut& left_out : analysis->left_out) {
    fmt::print("{}: left out. {}\n", left_out.title, left_out.reason);
  }
  if (!written.png) {
    fmt::print("There are no PNG pictures: this machine has no librsvg (Debian: librsvg2-2). The SVGs are complete.\n");
  }
  fmt::print("\nReport: {}\n", (fs::path(flags.out) / "report.html").string());
}

}  // namespace

void add_analyze(CLI::App& app) {
  auto flags = std::make_shared<AnalyzeFlags>();
  CLI::App* command = app.add_subcommand("analyze", "Look into a model's memory while it reads: the paper's analyses");
  command->add_option("--model", flags->model, kModelHelp)->required();
  command->add_option("--data", flags->data, "Text to read: plain, or JSON lines (.jsonl); also .gz, .xz, .zst")
      ->required();
  command->add_option("--out", flags->out, "Folder for the report, the tables and the figures")->required();
  command->add_option("--tokenizer", flags->tokenizer, "Another tokenizer than the model folder's");
  command->add_option("--text-key", flags->text_key, "Member of a JSON line that holds the text")
      ->capture_default_str();
  command->add_flag("--bytes", flags->bytes, "Take a file that is not UTF-8 text as it is");
  command->add_option("--tokens", flags->tokens, "Tokens to read in all")->capture_default_str();
  command->add_option("--length", flags->length, "Tokens of a sequence, at most; each starts from an empty memory")
      ->capture_default_str();
  command->add_option("--layers", flags->layers, "Such as 5,10,15 or 0-3 or all, from 0. Default: three, evenly");
  command->add_option("--heads", flags->heads, "Likewise. Default: all");
  command
      ->add_option("--history", flags->history,
                   "Tokens of a sequence that each key is followed through; the time grows with its square")
      ->capture_default_str();
  flags->device.add_to(*command);
  command->footer(
      "Writes OUT/report.html, one page that needs nothing beside itself, and beside it a CSV for each table and an "
      "SVG\n"
      "and a PNG for each figure:\n"
      "  contraction          β a, the share inside (0, 2), and the one-step contraction |1 − β a|\n"
      "  drift, bound         target, prediction and residual drift; the stability theorem's bound and the error\n"
      "  values_similarity    cosine of key-retrieved and query-conditioned values\n"
      "  values_pca           principal directions of the one, energy of the other in them\n"
      "  gates                α, β and λ of each head and layer\n"
      "  memory_length        how long a pair is remembered\n"
      "  state_rank           norm and effective rank of the state over time\n"
      "  identities           the paper's identities, checked on this model in double precision\n"
      "What says nothing about the model's rule is left out, and the report says so.\n"
      "\n"
      "Examples:\n"
      "  qdelta analyze --model run --data other.txt --out inside\n"
      "  qdelta analyze --model M --data books.jsonl --out inside --layers all --tokens 10000 --device cuda");
  command->callback([flags] { run_analyze(*flags); });
}

}  // namespace qdelta
