// The flags that say what model to train: a config.json to start from, and single settings on top of it.
#pragma once

#include <optional>
#include <string>

#include "model/config.h"

namespace CLI {
class App;
}

namespace qdelta {

struct ModelFlags {
  std::string file;  // config.json; "": the built-in small model
  std::optional<std::string> rule;
  std::optional<std::int64_t> vocab_size, hidden_size, layers, heads, v_heads, head_dim, conv_size, mlp_width;
  std::optional<std::int64_t> state_size, dt_rank;
  std::optional<double> expand, expand_v, fixed_lambda, lambda_bias, lambda_bias_start;
  std::optional<std::string> gate_activation;
  std::optional<bool> mlp, gate, short_conv, decay, neg_eigval, tie;

  void add_to(CLI::App& command);
  // The model these flags describe; `vocabulary` is used where neither file nor flags name one.
  [[nodiscard]] ModelConfig config(std::int64_t vocabulary) const;
};

}  // namespace qdelta
