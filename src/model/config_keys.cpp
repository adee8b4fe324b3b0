#include "model/config_keys.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "core/error.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

using Json = nlohmann::json;

constexpr std::uint8_t kQDelta = 1;
constexpr std::uint8_t kGated = 2;
constexpr std::uint8_t kDelta = 4;
constexpr std::uint8_t kAnyMamba = 8;
constexpr std::uint8_t kRecurrences = kQDelta | kGated | kDelta;
constexpr std::uint8_t kAll = kRecurrences | kAnyMamba;

constexpr ConfigKey kKeys[] = {
    // The model.
    {"model_type", kAll, KeyUse::read},
    {"vocab_size", kAll, KeyUse::read},
    {"hidden_size", kAll, KeyUse::read},
    {"num_hidden_layers", kAll, KeyUse::read},
    {"norm_eps", kAll, KeyUse::read},
    {"tie_word_embeddings", kAll, KeyUse::read},
    {"initializer_range", kAll, KeyUse::read},
    {"bos_token_id", kAll, KeyUse::read},
    {"eos_token_id", kAll, KeyUse::read},
    {"pad_token_id", kAll, KeyUse::read},
    // The recurrence and the MLP.
    {"num_heads", kRecurrences, KeyUse::read},
    {"num_v_heads", kQDelta | kGated, KeyUse::read},
    {"head_dim", kQDelta | kGated, KeyUse::read},
    {"expand_k", kDelta, KeyUse::read},
    {"expand_v", kRecurrences, KeyUse::read},
    {"conv_size", kRecurrences, KeyUse::read},
    {"use_short_conv", kRecurrences, KeyUse::read},
    {"use_gate", kRecurrences, KeyUse::read},
    {"output_gate_activation", kQDelta | kGated, KeyUse::read},
    {"allow_neg_eigval", kRecurrences, KeyUse::read},
    {"hidden_ratio", kRecurrences, KeyUse::read},
    {"intermediate_size", kAll, KeyUse::read},
    {"lamb_bias", kQDelta, KeyUse::read},
    // Mamba.
    {"conv_kernel", kAnyMamba, KeyUse::read},
    {"layer_norm_epsilon", kAnyMamba, KeyUse::read},
    {"expand", kQDelta | kAnyMamba, KeyUse::read},
    {"state_size", kQDelta | kAnyMamba, KeyUse::read},
    {"time_step_rank", kQDelta | kAnyMamba, KeyUse::read},
    {"dt_rank", kAnyMamba, KeyUse::read},
    // Ours.
    {"rule", kQDelta, KeyUse::read},
    {"layer_types", kAll, KeyUse::read},
    {"use_mlp", kAll, KeyUse::read},
    {"fixed_lambda", kQDelta, KeyUse::read},
    {"initial_lamb_bias", kQDelta, KeyUse::read},
    {"use_decay", kQDelta | kGated, KeyUse::read},

    {"hidden_act", kAll, KeyUse::fixed, R"("swish" "silu")"},
    {"attn", kRecurrences, KeyUse::fixed, "null"},                // layers of softmax attention among the others
    {"attnres_block_size", kRecurrences, KeyUse::fixed, "null"},  // attention over the residuals of earlier layers
    {"conv_bias", kRecurrences, KeyUse::fixed, "false"},
    {"use_beta", kRecurrences, KeyUse::fixed, "true"},
    {"use_output_norm", kRecurrences, KeyUse::fixed, "true"},
    {"qk_norm", kRecurrences, KeyUse::fixed, R"("l2")"},
    {"qk_activation", kRecurrences, KeyUse::fixed, R"("silu")"},
    // Of older versions of flash-linear-attention.
    {"use_rope", kRecurrences, KeyUse::fixed, "false null"},
    {"norm_first", kRecurrences, KeyUse::fixed, "false null"},         // norms of other names, inside mixer and MLP
    {"share_conv_kernel", kRecurrences, KeyUse::fixed, "false null"},  // one convolution before the projections
    {"use_elu", kRecurrences, KeyUse::fixed, "false null"},
    {"clamp_min", kRecurrences, KeyUse::fixed, "null"},
    {"clamp_max", kRecurrences, KeyUse::fixed, "null"},
    {"use_bias", kAnyMamba, KeyUse::fixed, "false"},
    {"use_conv_bias", kAnyMamba, KeyUse::fixed, "true"},
    // Of any model of transformers.
    {"quantization_config", kAll, KeyUse::fixed, "null"},
    {"compression_config", kAll, KeyUse::fixed, "null"},
    {"pruned_heads", kAll, KeyUse::fixed, "{} null"},
    {"is_encoder_decoder", kAll, KeyUse::fixed, "false"},
    {"add_cross_attention", kAll, KeyUse::fixed, "false"},

    // Which kernels, how much of it is fused, and the loss in training.
    {"attn_mode", kAll, KeyUse::ignored},
    {"chunk_size", kRecurrences, KeyUse::ignored},
    {"fuse_norm", kAll, KeyUse::ignored},
    {"fuse_swiglu", kAll, KeyUse::ignored},
    {"fuse_cross_entropy", kAll, KeyUse::ignored},
    {"fuse_linear_cross_entropy", kAll, KeyUse::ignored},
    {"fused_add_norm", kAnyMamba, KeyUse::ignored},
    {"use_l2warp", kAll, KeyUse::ignored},
    {"use_cache", kAll, KeyUse::ignored},
    {"use_mambapy", kAnyMamba, KeyUse::ignored},
    {"use_associative_scan", kAnyMamba, KeyUse::ignored},
    {"residual_in_fp32", kAll, KeyUse::ignored},
    {"max_position_embeddings", kAll, KeyUse::ignored},  // nothing here depends on a position
    {"dtype", kAll, KeyUse::ignored},                    // of the weights: their file says it
    {"torch_dtype", kAll, KeyUse::ignored},
    {"use_bfloat16", kAll, KeyUse::ignored},
    // How weights were initialized.
    {"rescale_prenorm_residual", kAnyMamba, KeyUse::ignored},
    {"time_step_scale", kAnyMamba, KeyUse::ignored},
    {"time_step_min", kAnyMamba, KeyUse::ignored},
    {"time_step_max", kAnyMamba, KeyUse::ignored},
    {"time_step_init_scheme", kAnyMamba, KeyUse::ignored},
    {"time_step_floor", kAnyMamba, KeyUse::ignored},
    {"dt_scale", kAnyMamba, KeyUse::ignored},
    {"dt_min", kAnyMamba, KeyUse::ignored},
    {"dt_max", kAnyMamba, KeyUse::ignored},
    {"dt_init_scheme", kAnyMamba, KeyUse::ignored},
    {"dt_init_floor", kAnyMamba, KeyUse::ignored},
    // The published folders of Mamba repeat what they were converted from.
    {"d_model", kAnyMamba, KeyUse::ignored},
    {"d_inner", kAnyMamba, KeyUse::ignored},
    {"n_layer", kAnyMamba, KeyUse::ignored},
    {"ssm_cfg", kAnyMamba, KeyUse::ignored},
    {"rms_norm", kAnyMamba, KeyUse::ignored},
    {"pad_vocab_size_multiple", kAnyMamba, KeyUse::ignored},
    // One file may serve all mixers: of these no other rule has one.
    {"lamb_bias", kGated | kDelta | kAnyMamba, KeyUse::ignored},
    {"fixed_lambda", kGated | kDelta | kAnyMamba, KeyUse::ignored},
    {"initial_lamb_bias", kGated | kDelta | kAnyMamba, KeyUse::ignored},
    {"output_gate_activation", kDelta | kAnyMamba, KeyUse::ignored},
    {"dt_rank", kQDelta, KeyUse::ignored},
    {"expand", kGated | kDelta, KeyUse::ignored},
    {"state_size", kGated | kDelta, KeyUse::ignored},
    {"time_step_rank", kGated | kDelta, KeyUse::ignored},
    // Of any model of transformers: what it is called, what to return, how to generate.
    {"architectures", kAll, KeyUse::ignored},
    {"auto_map", kAll, KeyUse::ignored},
    {"_name_or_path", kAll, KeyUse::ignored},
    {"name_or_path", kAll, KeyUse::ignored},
    {"_commit_hash", kAll, KeyUse::ignored},
    {"_attn_implementation_autoset", kAll, KeyUse::ignored},
    {"transformers_version", kAll, KeyUse::ignored},
    {"transformers_weights", kAll, KeyUse::ignored},
    {"tokenizer_class", kAll, KeyUse::ignored},
    {"finetuning_task", kAll, KeyUse::ignored},
    {"problem_type", kAll, KeyUse::ignored},
    {"task_specific_params", kAll, KeyUse::ignored},
    {"id2label", kAll, KeyUse::ignored},
    {"label2id", kAll, KeyUse::ignored},
    {"num_labels", kAll, KeyUse::ignored},
    {"return_dict", kAll, KeyUse::ignored},
    {"output_hidden_states", kAll, KeyUse::ignored},
    {"output_attentions", kAll, KeyUse::ignored},
    {"torchscript", kAll, KeyUse::ignored},
    {"tf_legacy_loss", kAll, KeyUse::ignored},
    {"chunk_size_feed_forward", kAll, KeyUse::ignored},
    {"is_decoder", kAll, KeyUse::ignored},
    {"cross_attention_hidden_size", kAll, KeyUse::ignored},
    {"tie_encoder_decoder", kAll, KeyUse::ignored},
    {"prefix", kAll, KeyUse::ignored},
    {"sep_token_id", kAll, KeyUse::ignored},
    {"decoder_start_token_id", kAll, KeyUse::ignored},
    {"forced_bos_token_id", kAll, KeyUse::ignored},
    {"forced_eos_token_id", kAll, KeyUse::ignored},
    {"max_length", kAll, KeyUse::ignored},
    {"min_length", kAll, KeyUse::ignored},
    {"do_sample", kAll, KeyUse::ignored},
    {"early_stopping", kAll, KeyUse::ignored},
    {"num_beams", kAll, KeyUse::ignored},
    {"num_beam_groups", kAll, KeyUse::ignored},
    {"diversity_penalty", kAll, KeyUse::ignored},
    {"temperature", kAll, KeyUse::ignored},
    {"top_k", kAll, KeyUse::ignored},
    {"top_p", kAll, KeyUse::ignored},
    {"typical_p", kAll, KeyUse::ignored},
    {"repetition_penalty", kAll, KeyUse::ignored},
    {"length_penalty", kAll, KeyUse::ignored},
    {"no_repeat_ngram_size", kAll, KeyUse::ignored},
    {"encoder_no_repeat_ngram_size", kAll, KeyUse::ignored},
    {"bad_words_ids", kAll, KeyUse::ignored},
    {"num_return_sequences", kAll, KeyUse::ignored},
    {"output_scores", kAll, KeyUse::ignored},
    {"return_dict_in_generate", kAll, KeyUse::ignored},
    {"remove_invalid_values", kAll, KeyUse::ignored},
    {"exponential_decay_length_penalty", kAll, KeyUse::ignored},
    {"suppress_tokens", kAll, KeyUse::ignored},
    {"begin_suppress_tokens", kAll, KeyUse::ignored},
};

bool is_one_of(const Json& value, std::string_view allowed) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  while (!allowed.empty()) {
    const std::string_view one = allowed.substr(0, allowed.find(' '));
    if (one == text) return true;
    allowed.remove_prefix(std::min(allowed.size(), one.size() + 1));
  }
  return false;
}

std::string with_or(std::string_view allowed) {
  std::string text(allowed);
  for (std::size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at + 4))
    text.replace(at, 1, " or ");
  return text;
}

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }

const ConfigKey* find_config_key(ConfigKind kind, std::string_view name) {
  const ConfigKey* const found = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const ConfigKey& key) {
    return key.name == name && (key.kinds & static_cast<unsigned>(kind)) != 0;
  });
  return found == std::end(kKeys) ? nullptr : &*found;
}

std::string shown_json(const Json& value) {
  constexpr std::size_t kLongest = 80;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);  // ASCII: it can be cut anywhere
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

ConfigKind kind_of_config(const Json& json) {
  const auto given = [&](const char* key) {
    const auto found = json.find(key);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  };
  if (given("rule") != nullptr) return ConfigKind::ours;
  const Json* type = given("model_type");
  if (type == nullptr) return ConfigKind::ours;
  require(type->is_string(), "config: 'model_type' is {}, not a name", shown_json(*type));
  const auto& name = type->get_ref<const std::string&>();
  if (name.empty() || name == "qdelta") return ConfigKind::ours;
  if (name == "gated_deltanet") return ConfigKind::gated_deltanet;
  if (name == "delta_net") return ConfigKind::delta_net;
  if (name == "mamba") return ConfigKind::mamba;
  fail(Status::unsupported,
       "config: model_type is {}; this engine reads 'qdelta', 'gated_deltanet', 'delta_net' and 'mamba', or any with a "
       "'rule' of its own",
       shown(name));
}

void check_fixed_keys(const Json& json, ConfigKind kind) {
  for (const auto& [name, value] : json.items()) {
    const ConfigKey* key = find_config_key(kind, name);
    if (key == nullptr || key->use != KeyUse::fixed || is_one_of(value, key->allowed)) continue;
    fail(Status::unsupported, "config: '{}' is {}, which this engine cannot run; only {}", key->name, shown_json(value),
         with_or(key->allowed));
  }
}

std::vector<std::string> unknown_config_keys(const Json& json) {
  const ConfigKind kind = kind_of_config(json);
  std::vector<std::string> unknown;
  for (const auto& [name, value] : json.items()) {
    if (find_config_key(kind, name) == nullptr) unknown.push_back(name);
  }
  return unknown;
}

}  // namespace qdelta
