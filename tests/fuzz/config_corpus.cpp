// What fuzz_config.cpp starts from: the layouts there are, and the keys of each.
#include <iterator>

#include "corpus.h"

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
    R"("dt_rank":"auto","use_mlp":false,"intermediate_size":64})",
};

constexpr std::string_view kWords[] = {
    "0.1",         "1e308",           "1e-308",          "16777216",         "\"auto\"",
    "\"mamba\"",   "\"mamba2\"",      "\"longhorn\"",    "\"retnet\"",       "[]",
    "{}",          "\"rule\":",       "\"model_type\":", "\"num_v_heads\":", "\"dt_rank\":",
    "\"expand\":", "\"state_size\":", "\"expand_v\":",   "\"hidden_ratio\":"};

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
