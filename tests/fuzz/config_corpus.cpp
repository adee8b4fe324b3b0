// What fuzz_config.cpp starts from: the kinds of config.json there are, an index, and every key that is known.
#include <fmt/format.h>

#include <iterator>

#include "corpus.h"
#include "model/config_keys.h"

namespace {

constexpr std::string_view kSeeds[] = {
    R"({"model_type":"qdelta","vocab_size":100,"hidden_size":64,"num_hidden_layers":2,"num_heads":2,"num_v_heads":null,)"
    R"("head_dim":16,"expand_v":2,"conv_size":4,"use_short_conv":true,"use_gate":true,"allow_neg_eigval":false,)"
    R"("hidden_ratio":4,"intermediate_size":null,"norm_eps":1e-6,"tie_word_embeddings":false,"initializer_range":0.02,)"
    R"("bos_token_id":1,"eos_token_id":2,"pad_token_id":null,"lamb_bias":-0.8,"hidden_act":"swish"})",
    R"({"rule":"gated_delta","vocab_size":50,"hidden_size":32,"num_hidden_layers":1,"num_heads":1,"num_v_heads":2,)"
    R"("head_dim":8,"expand_v":1.5,"use_mlp":false,"use_decay":false})",
    R"({"rule":"q_delta","fixed_lambda":0.5,"hidden_size":48,"num_heads":3,"head_dim":16,"intermediate_size":96})",
    R"({"rule":"mamba","vocab_size":60,"hidden_size":32,"num_hidden_layers":2,"expand":2,"state_size":16,)"
    R"("time_step_rank":"auto","use_mlp":false,"intermediate_size":64})",
    R"({"model_type":"gated_deltanet","vocab_size":50,"hidden_size":32,"num_hidden_layers":2,"num_heads":2,"head_dim":8,)"
    R"("output_gate_activation":"sigmoid","attn":null,"attnres_block_size":null,"fuse_norm":true})",
    R"({"model_type":"delta_net","vocab_size":50,"hidden_size":32,"num_hidden_layers":2,"num_heads":2,"expand_k":1.0,)"
    R"("expand_v":1.0,"qk_norm":"l2","qk_activation":"silu","use_beta":true,"use_output_norm":true})",
    R"({"model_type":"mamba","vocab_size":60,"hidden_size":32,"num_hidden_layers":2,"expand":2,"state_size":16,)"
    R"("conv_kernel":4,"time_step_rank":2,"dt_rank":2,"layer_norm_epsilon":1e-5,"intermediate_size":64,"use_bias":false})",
    R"({"rule":null,"layer_types":["q_delta","mamba"],"hidden_size":32,"num_hidden_layers":2,"num_heads":2,"head_dim":8,)"
    R"("initial_lamb_bias":0.9,"lamb_bias":null,"quantization_config":null})",
    R"({"metadata":{"total_size":10},"weight_map":{"a.weight":"model-00001-of-00002.safetensors",)"
    R"("b.weight":"model-00002-of-00002.safetensors"}})",
};

constexpr std::string_view kWords[] = {
    "0.1",           "1e308",        "1e-308",     "16777216", "\"auto\"", "\"mamba\"",
    "\"mamba2\"",    "\"longhorn\"", "\"retnet\"", "[]",       "{}",       "\"gated_deltanet\"",
    "\"delta_net\"", "\"sigmoid\"",  "\"../x\"",   "\"..\"",   "\"a/b\"",  "\"weight_map\":"};

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }

std::span<const std::string_view> qdelta::fuzz::words() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all;
    for (const ConfigKey& key : config_keys()) {
      all.push_back(fmt::format("\"{}\":", key.name));
      all.push_back(fmt::format("\"{}\":{},", key.name,
                                key.allowed.empty() ? "2" : key.allowed.substr(0, key.allowed.find(' '))));
    }
    return all;
  }();
  static const std::vector<std::string_view> words = [] {
    std::vector<std::string_view> all(std::begin(kWords), std::end(kWords));
    all.insert(all.end(), keys.begin(), keys.end());
    return all;
  }();
  return words;
}
