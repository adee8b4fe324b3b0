// What a model is: the published `config.json`, and the few keys we add to it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "rule/rule.h"

namespace qdelta {

// What mixes the tokens of a block: the recurrence, by one of its rules, or the selective scan of Mamba.
enum class Mixer : int { recurrence, mamba };

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

  Mixer mixer = Mixer::recurrence;     // these two from model_type, or our key "rule"
  Rule rule = Rule::q_delta;           // of the recurrence
  std::optional<double> lamb_bias;     // the published constant, -b; missing: b is a learned parameter, from -0.8
  std::optional<double> fixed_lambda;  // ours, an ablation: lambda has this value everywhere
  bool use_decay = true;               // ours, an ablation: false keeps g = 0 in the gated rules

  // Mamba's own. Of the keys above it reads those of the model, the convolution's size and the MLP's.
  double expand = 2;  // inner width = hidden_size * expand
  std::int64_t state_size = 16;
  std::int64_t dt_rank = 0;  // 0 ("auto" in the file): hidden_size / 16, rounded up

  [[nodiscard]] std::int64_t inner_width() const;
  [[nodiscard]] std::int64_t step_rank() const { return dt_rank > 0 ? dt_rank : (hidden_size + 15) / 16; }

  // The mixer's name in files and on the command line, and in the paper: a rule's, or Mamba's.
  [[nodiscard]] std::string_view mixer_name() const;
  [[nodiscard]] std::string_view mixer_title() const;
  // Throws where there is none of that name.
  void choose_mixer(std::string_view name);

  // Of a block: the channels of its convolution, and the shapes of a pool of `count` states.
  [[nodiscard]] std::int64_t conv_channels() const;
  [[nodiscard]] Shape conv_states(std::int64_t count) const;
  [[nodiscard]] Shape recurrent_states(std::int64_t count) const;
  // Mamba without an MLP is the published model, whose folders have keys and names of their own.
  [[nodiscard]] bool published_mamba() const { return mixer == Mixer::mamba && !use_mlp; }

  [[nodiscard]] std::int64_t value_heads() const { return num_v_heads > 0 ? num_v_heads : num_heads; }
  [[nodiscard]] std::int64_t value_dim() const;  // of one head
  [[nodiscard]] std::int64_t mlp_width() const;
  [[nodiscard]] std::int64_t key_width() const { return num_heads * head_dim; }
  [[nodiscard]] std::int64_t value_width() const { return value_heads() * value_dim(); }

  // Which parameters the mixer of a block has, by rule and ablation.
  [[nodiscard]] bool learns_decay() const;   // a_proj, A_log, dt_bias
  [[nodiscard]] bool learns_beta() const;    // b_proj
  [[nodiscard]] bool learns_lambda() const;  // lamb_proj
  [[nodiscard]] bool learns_lambda_bias() const { return learns_lambda() && !lamb_bias; }

  // Throws with the key and what is wrong with it.
  void check() const;
};

// The initial value of the learned bias of lambda.
inline constexpr double kLambdaBias = -0.8;

// The names of all mixers, rules first.
[[nodiscard]] std::vector<std::string_view> mixer_names();

[[nodiscard]] ModelConfig config_from_json(const nlohmann::json& json);
[[nodiscard]] nlohmann::ordered_json config_to_json(const ModelConfig& config);
// `path` is a config.json, or a folder that holds one.
[[nodiscard]] ModelConfig load_config(const std::string& path);

}  // namespace qdelta
