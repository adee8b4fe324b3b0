#include "cli/model_info.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "core/error.h"
#include "model/language_model.h"
#include "model/mixer_types.h"

namespace qdelta {
namespace {

constexpr std::int64_t kFloat = sizeof(float);

struct ModelSizes {
  std::int64_t parameters = 0, embedding = 0, head = 0;     // head: 0 where it is tied
  std::vector<std::int64_t> blocks;                         // parameters of each
  std::int64_t state_bytes = 0;                             // of one sequence
  std::int64_t weight_bytes = 0, optimizer_bytes = 0;       // gradients take as much as weights
  std::int64_t activation_bytes = 0, recomputed_bytes = 0;  // with recomputation
};

std::int64_t activation_bytes(const ParameterLayout& layout, std::int64_t batch, std::int64_t tokens,
                              Recompute recompute) {
  return static_cast<std::int64_t>(ModelRunner::training_bytes(layout, {}, batch, tokens, recompute));
}

std::int64_t state_bytes(const ModelConfig& c) {
  std::int64_t floats = 0;
  for (const std::unique_ptr<Mixer>& mixer : make_mixers(c)) {
    for (const StateTensor& tensor : mixer->state_tensors()) floats += tensor.shape.elements();
  }
  return floats * kFloat;
}

// Of each mixer of the model, those that look alike once.
std::vector<MixerDescription> mixer_descriptions(const ModelConfig& c) {
  std::vector<MixerDescription> descriptions;
  for (const std::unique_ptr<Mixer>& mixer : make_distinct_mixers(c)) {
    MixerDescription about = mixer->description();
    const bool known = std::any_of(descriptions.begin(), descriptions.end(),
                                   [&](const MixerDescription& other) { return other.text == about.text; });
    if (!known) descriptions.push_back(std::move(about));
  }
  return descriptions;
}

ModelSizes sizes_of(const ParameterLayout& layout, std::int64_t batch, std::int64_t tokens) {
  const ModelConfig& c = layout.config;
  ModelSizes sizes;
  sizes.parameters = layout.parameters();
  sizes.embedding = layout.embeddings.shape.elements();
  sizes.head = c.tie_word_embeddings ? 0 : layout.head.shape.elements();
  sizes.blocks = layout.block_parameters;
  sizes.state_bytes = state_bytes(c);
  sizes.weight_bytes = layout.size * kFloat;
  sizes.optimizer_bytes = 2 * sizes.weight_bytes;
  sizes.activation_bytes = activation_bytes(layout, batch, tokens, Recompute::none);
  sizes.recomputed_bytes = activation_bytes(layout, batch, tokens, Recompute::all);
  return sizes;
}

// 1234567 as 1,234,567
std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<std::int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(text.begin() + at, ',');
  }
  return text;
}

void print_for_people(const ModelInfoOptions& options, const ModelConfig& c, const ModelSizes& sizes) {
  const auto line = [](const char* label, const std::string& text) { fmt::print("{:<16}{}\n", label, text); };
  const std::int64_t fixed = 2 * sizes.weight_bytes + sizes.optimizer_bytes;
  fmt::print("{}\n\n", options.model);
  line("Rule", fmt::format("{} ({})", c.mixer_title(), c.mixer_name()));
  line("Layers", fmt::format("{} of width {}", c.num_hidden_layers, c.hidden_size));
  if (!c.layer_types.empty()) line("Layer types", fmt::format("{}", fmt::join(c.layer_types, ", ")));
  for (const MixerDescription& about : mixer_descriptions(c)) line(about.label.c_str(), about.text);
  line("MLP", c.use_mlp ? fmt::format("width {}", c.mlp_width()) : "none");
  line("Vocabulary", fmt::format("{}", c.vocab_size));
  line("Parameters", grouped(sizes.parameters));
  line("  embedding", grouped(sizes.embedding));
  line("  output head", c.tie_word_embeddings ? "the embedding" : grouped(sizes.head));
  if (c.layer_types.empty()) {
    line("  each block", grouped(sizes.blocks.front()));
  } else {
    std::vector<std::string> blocks;
    for (const std::int64_t parameters : sizes.blocks) blocks.push_back(grouped(parameters));
    line("  blocks", fmt::format("{}", fmt::join(blocks, "  ")));
  }
  line("Weights", size_text(sizes.weight_bytes));
  line("State", fmt::format("{} per sequence, whatever its length", size_text(sizes.state_bytes)));
  fmt::print("\nMemory for training on batches of {} x {} tokens\n", options.rows, options.seq_len);
  line("  gradients", size_text(sizes.weight_bytes));
  line("  optimizer", fmt::format("{} (two moments)", size_text(sizes.optimizer_bytes)));
  line("  activations",
       fmt::format("{}, with recomputation {}", size_text(sizes.activation_bytes), size_text(sizes.recomputed_bytes)));
  line("  in all", fmt::format("{}, with recomputation {} (weights included)",
                               size_text(fixed + sizes.activation_bytes), size_text(fixed + sizes.recomputed_bytes)));
}

nlohmann::ordered_json for_machines(const ModelInfoOptions& options, const ModelConfig& c, const ModelSizes& sizes) {
  const std::int64_t fixed = 2 * sizes.weight_bytes + sizes.optimizer_bytes;
  const nlohmann::ordered_json block =
      c.layer_types.empty() ? nlohmann::ordered_json(sizes.blocks.front()) : nlohmann::ordered_json(sizes.blocks);
  nlohmann::ordered_json json{
      {"model", options.model}, {"rule", c.mixer_name()}, {"layers", c.num_hidden_layers}, {"width", c.hidden_size}};
  if (!c.layer_types.empty()) json["layer_types"] = c.layer_types;
  for (const MixerDescription& about : mixer_descriptions(c)) {
    for (const auto& [name, size] : about.sizes) json[std::string(name)] = size;
  }
  json.update(nlohmann::ordered_json{{"mlp_width", c.mlp_width()},
                                     {"vocab_size", c.vocab_size},
                                     {"parameters",
                                      {{"total", sizes.parameters},
                                       {"embedding", sizes.embedding},
                                       {"head", sizes.head},
                                       {c.layer_types.empty() ? "block" : "blocks", block}}},
                                     {"weight_bytes", sizes.weight_bytes},
                                     {"state_bytes", sizes.state_bytes},
                                     {"training",
                                      {{"batch", options.rows},
                                       {"tokens", options.seq_len},
                                       {"gradient_bytes", sizes.weight_bytes},
                                       {"optimizer_bytes", sizes.optimizer_bytes},
                                       {"activation_bytes", sizes.activation_bytes},
                                       {"activation_bytes_recomputed", sizes.recomputed_bytes},
                                       {"total_bytes", fixed + sizes.activation_bytes},
                                       {"total_bytes_recomputed", fixed + sizes.recomputed_bytes}}}});
  return json;
}

}  // namespace

std::string size_text(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

void print_model_info(const ModelInfoOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  require(options.rows > 0 && options.rows <= kMost, "--rows is {}, expected 1 to {}", options.rows, kMost);
  require(options.seq_len > 0 && options.seq_len <= kMost, "--seq-len is {}, expected 1 to {}", options.seq_len, kMost);
  const ModelConfig config = load_config(options.model);
  const ModelSizes sizes = sizes_of(ParameterLayout(config), options.rows, options.seq_len);
  if (options.json) {
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;  // a path may have any bytes
    fmt::print("{}\n", for_machines(options, config, sizes).dump(2, ' ', false, replace));
  } else {
    print_for_people(options, config, sizes);
  }
}

}  // namespace qdelta
