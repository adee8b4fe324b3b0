// What a model is: the published `config.json`, and the few keys we add to it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/gate_activation.h"

namespace qdelta {

struct ModelConfig {
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 1024;
  std::int64_t num_hidden_layers = 21;
  std::int64_t num_heads = 6;
  std::int64_t num_v_heads = 0;  // 0 ("null" in the file): as many as num_heads
  std::int64_t head_dim = 128;
  double expand_v = 2;  // width of a value head = head_dim * expand_v
  std::int64_t conv_size = 4;
  bool use_short_conv = true;
  bool use_gate = true;
  GateActivation output_gate = GateActivation::silu;
  bool allow_neg_eigval = false;  // doubles beta and lambda
  double hidden_ratio = 4;
  std::int64_t intermediate_size = 0;  // 0 ("null"): from hidden_ratio
  bool use_mlp = true;                 // ours: false leaves the MLP out (the recall models of the paper)
  double norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  // Of the tokenizer, for others who read the folder: the engine itself asks the tokenizer. As published where the file
  // does not say; null is none, which synthetic tokens have.
  std::optional<std::int64_t> bos_token_id = 1, eos_token_id = 2, pad_token_id;

  // What mixes the tokens: names in the table of mixer_types.h.
  std::string mixer = "q_delta";         // of every layer; from model_type, or our key "rule"
  std::vector<std::string> layer_types;  // ours, where layers differ: the mixer of each, instead of `mixer`
  std::optional<double> lamb_bias;       // the published constant, -b; missing: b is a learned parameter
  double initial_lamb_bias = 0.8;        // ours: -b at the start of training, where it is learned
  std::optional<double> fixed_lambda;    // ours, an ablation: lambda has this value everywhere
  bool use_decay = true;                 // ours, an ablation: false keeps g = 0 in the gated rules

  // Mamba's own. Of the keys above it reads those of the model, the convolution's size and the MLP's.
  double expand = 2;  // inner width = hidden_size * expand
  std::int64_t state_size = 16;
  std::int64_t dt_rank = 0;  // 0 ("auto" in the file): hidden_size / 16, rounded up

  [[nodiscard]] std::int64_t inner_width() const;
  [[nodiscard]] std::int64_t step_rank() const { return dt_rank > 0 ? dt_rank : (hidden_size + 15) / 16; }

  // The mixer of a layer. Where layers differ, `mixer` says nothing.
  [[nodiscard]] const std::string& layer_type(std::int64_t layer) const;
  // Each that some layer has, once, in the order of the layers.
  [[nodiscard]] std::vector<std::string> distinct_layer_types() const;
  // The mixers' names in files and on the command line, and in papers. Of layers that differ the shortest pattern that
  // repeats: "q_delta,mamba".
  [[nodiscard]] std::string mixer_name() const;
  [[nodiscard]] std::string mixer_title() const;
  // A mixer's name, or several with commas between, a pattern that is repeated over the layers (set their number
  // first). Throws where there is none of a name, or the pattern is longer than the model.
  void choose_mixer(std::string_view pattern);
  // The mixer of each layer.
  void set_layer_types(std::vector<std::string> types);
  // Whether some layer's rule reads lambda.
  [[nodiscard]] bool has_lambda() const;

  // Mamba without an MLP is the published model, whose folders have keys and names of their own.
  [[nodiscard]] bool published_mamba() const;

  [[nodiscard]] std::int64_t value_heads() const { return num_v_heads > 0 ? num_v_heads : num_heads; }
  [[nodiscard]] std::int64_t value_dim() const;  // of one head
  [[nodiscard]] std::int64_t mlp_width() const;
  [[nodiscard]] std::int64_t key_width() const { return num_heads * head_dim; }
  [[nodiscard]] std::int64_t value_width() const { return value_heads() * value_dim(); }

  // Throws with the key and what is wrong with it.
  void check() const;
};

// Of its name in files; `what` is said where there is none of that name.
[[nodiscard]] GateActivation gate_activation_of(const std::string& name, const char* what);
[[nodiscard]] ModelConfig config_from_json(const nlohmann::json& json);
[[nodiscard]] nlohmann::ordered_json config_to_json(const ModelConfig& config);
// `path` is a config.json, or a folder that holds one.
[[nodiscard]] ModelConfig load_config(const std::string& path);

}  // namespace qdelta
