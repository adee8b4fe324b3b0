#include "cli/model_flags.h"

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "core/error.h"
#include "model/mixer_types.h"

namespace qdelta {

void ModelFlags::add_to(CLI::App& command) {
  const std::string group = "Model";
  const auto add = [&](const char* name, auto& value, const std::string& help) {
    command.add_option(name, value, help)->group(group);
  };
  add("--model-config", file,
      "config.json (or its folder) to start from; without it a small model of 4 layers, width 256");
  add("--rule", rule,
      fmt::format("The token mixer: {}; several with commas between are repeated over the layers",
                  fmt::join(mixer_names(), ", ")));
  add("--vocab-size", vocab_size, "Default: the tokenizer's");
  add("--hidden-size", hidden_size, "Width of the model");
  add("--layers", layers, "Number of blocks");
  add("--heads", heads, "Heads of q and k");
  add("--v-heads", v_heads, "Heads of v, a multiple of --heads");
  add("--head-dim", head_dim, "Width of a key head");
  add("--expand-v", expand_v, "Width of a value head, as a multiple of --head-dim");
  add("--conv-size", conv_size, "Tokens of the short convolution");
  add("--expand", expand, "mamba: inner width, as a multiple of --hidden-size");
  add("--state-size", state_size, "mamba: states of a channel");
  add("--dt-rank", dt_rank, "mamba: rank of a token's step sizes; default a sixteenth of --hidden-size");
  add("--mlp-width", mlp_width, "Width of the MLP; default from the width of the model");
  add("--mlp", mlp, "false: blocks without an MLP");
  add("--gate", gate, "false: no output gate");
  add("--gate-activation", gate_activation, "Of the output gate: swish (default) or sigmoid");
  add("--short-conv", short_conv, "false: no short convolution");
  add("--neg-eigval", neg_eigval, "true: beta and lambda may reach 2");
  add("--tie", tie, "true: the output head is the embedding");
  add("--lambda", fixed_lambda, "Ablation: lambda has this value instead of being learned");
  add("--lambda-bias", lambda_bias,
      "Keep lambda's bias at this value instead of learning it (the paper: -0.8; its published code now: -0.9)");
  add("--lambda-bias-start", lambda_bias_start, "Where lambda's bias is learned from; default -0.8");
  add("--decay", decay, "Ablation: false switches the decay off");
}

ModelConfig ModelFlags::config(std::int64_t vocabulary) const {
  ModelConfig config;
  if (file.empty()) {
    config.hidden_size = 256;
    config.num_hidden_layers = 4;
    config.num_heads = 3;
    config.head_dim = 64;
    config.vocab_size = vocabulary;
    config.initializer_range = 0.02;
  } else {
    config = load_config(file);
  }
  const auto set = [](auto& field, const auto& flag) {
    if (flag) field = *flag;
  };
  set(config.vocab_size, vocab_size);
  set(config.hidden_size, hidden_size);
  set(config.num_hidden_layers, layers);
  if (rule) config.choose_mixer(*rule);
  set(config.num_heads, heads);
  set(config.num_v_heads, v_heads);
  set(config.head_dim, head_dim);
  set(config.expand_v, expand_v);
  set(config.conv_size, conv_size);
  set(config.expand, expand);
  set(config.state_size, state_size);
  set(config.dt_rank, dt_rank);
  set(config.intermediate_size, mlp_width);
  set(config.use_mlp, mlp);
  set(config.use_gate, gate);
  set(config.use_short_conv, short_conv);
  set(config.allow_neg_eigval, neg_eigval);
  set(config.tie_word_embeddings, tie);
  set(config.use_decay, decay);
  if (fixed_lambda) config.fixed_lambda = *fixed_lambda;
  if (lambda_bias) config.lamb_bias = -*lambda_bias;  // the file stores it with the other sign
  if (lambda_bias_start) config.initial_lamb_bias = -*lambda_bias_start;
  require(config.has_lambda() || (!fixed_lambda && !lambda_bias && !lambda_bias_start),
          "{} has no lambda: leave --lambda, --lambda-bias and --lambda-bias-start out", config.mixer_title());
  require(!lambda_bias_start || (!config.lamb_bias && !config.fixed_lambda),
          "--lambda-bias-start is where a bias is learned from, but this model's is constant");
  if (gate_activation) config.output_gate = gate_activation_of(*gate_activation, "--gate-activation");
  config.check();
  return config;
}

}  // namespace qdelta
