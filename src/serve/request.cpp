#include "serve/request.h"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "core/error.h"
#include "data/checked_json.h"
#include "io/parse_json.h"
#include "io/untrusted_text.h"
#include "serve/api_error.h"
#include "serve/state_name.h"

namespace qdelta::serve {
namespace {

using nlohmann::json;

template <class... Args>
[[noreturn]] void refuse(const std::string& parameter, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, fmt::format(format, std::forward<Args>(args)...), parameter);
}

// A whole number in a range; JSON has others.
std::optional<std::int64_t> whole_number(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<std::int64_t>();
}

const char* type_name(const json& value) { return is_json_ids(value) ? "array of numbers" : value.type_name(); }
bool is_array(const json& value) { return value.is_array() || is_json_ids(value); }

// The fields of a request, each asked for by its name and type.
class Fields {
 public:
  explicit Fields(std::string_view body) {
    try {
      all_ = parse_json_with_ids(body, "the body");
    } catch (const Error& error) {
      throw ApiError(400, error.what());
    }
    if (!all_.is_object()) refuse("", "the body must be a JSON object, not {}", type_name(all_));
  }

  // Null where it is not given.
  [[nodiscard]] const json* find(const char* name) const {
    const auto found = all_.find(name);
    return found == all_.end() || found->is_null() ? nullptr : &*found;
  }
  [[nodiscard]] bool flag(const char* name, bool otherwise) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(name, "{} must be true or false, not {}", name, type_name(*value));
    return value->get<bool>();
  }
  [[nodiscard]] std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high) const {
    const json* value = find(name);
    if (value == nullptr) return std::nullopt;
    const std::optional<std::int64_t> number = whole_number(*value);
    if (!number || *number < low || *number > high) {
      refuse(name, "{} must be a whole number from {} to {}", name, low, high);
    }
    return number;
  }
  [[nodiscard]] float number(const char* name, float otherwise) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) refuse(name, "{} must be a number, not {}", name, type_name(*value));
    const auto number = static_cast<float>(value->get<double>());
    if (!std::isfinite(number)) refuse(name, "{} is too large", name);
    return number;
  }
  // The name of a state; empty where it is not given.
  [[nodiscard]] std::string state_name(const char* name) const {
    const json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(name, "{} must be the name of a state, not {}", name, type_name(*value));
    check_state_name(value->get_ref<const std::string&>(), name);
    return value->get<std::string>();
  }
  // A field that may only ask for what happens anyway.
  void only(const char* name, std::initializer_list<json> allowed) const {
    const json* value = find(name);
    if (value == nullptr) return;
    for (const json& one : allowed) {
      if (*value == one) return;
    }
    refuse(name, "{} is not supported: leave it out", name);
  }
  // No field with such a name.
  void none_like(std::string_view beginning) const {
    for (const auto& [name, value] : all_.items()) {
      if (name.starts_with(beginning) && !value.is_null()) refuse(name, "{} is not supported: leave it out", name);
    }
  }

 private:
  json all_;
};

std::vector<std::int32_t> token_ids(const json& value, const std::string& place, const char* parameter,
                                    std::int64_t most, std::int64_t vocab_size) {
  if (!is_array(value)) refuse(parameter, "{} must be an array of token ids, not {}", place, type_name(value));
  std::vector<std::int32_t> ids = is_json_ids(value) ? json_ids(value) : std::vector<std::int32_t>();
  const std::size_t size = std::max(ids.size(), value.size());  // what holds ids has a size of 1
  if (static_cast<std::int64_t>(size) > most) {
    refuse(parameter, "{} has {} tokens, and this server takes at most {}", place, size, most);
  }
  const auto refuse_at = [&](std::size_t index) {
    refuse(parameter, "{}[{}] must be a token id: a whole number from 0 to {}", place, index, vocab_size - 1);
  };
  std::int32_t largest = 0;
  for (const std::int32_t id : ids) largest = std::max(largest, id);
  if (largest >= vocab_size) {
    refuse_at(
        static_cast<std::size_t>(std::ranges::find_if(ids, [&](auto id) { return id >= vocab_size; }) - ids.begin()));
  }
  if (!ids.empty()) return ids;
  for (const json& element : value) {
    const std::optional<std::int64_t> id = whole_number(element);
    if (!id || *id < 0 || *id >= vocab_size) refuse_at(ids.size());
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

// A text, several, the tokens of one, or those of several.
std::vector<Prompt> prompts_of(const Fields& fields, const Limits& limits) {
  const json* prompt = fields.find("prompt");
  if (prompt == nullptr) refuse("prompt", "prompt is missing: a text, token ids, or an array of either");
  if (prompt->is_string()) return {prompt->get<std::string>()};
  if (!is_array(*prompt)) {
    refuse("prompt", "prompt must be a text, token ids, or an array of either, not {}", type_name(*prompt));
  }
  if (prompt->empty()) refuse("prompt", "prompt is an empty array");
  const auto ids_at = [&](const json& value, const std::string& place) {
    std::vector<std::int32_t> ids = token_ids(value, place, "prompt", limits.max_prompt, limits.vocab_size);
    if (ids.empty()) refuse("prompt", "{} has no tokens", place);
    return ids;
  };
  if (is_json_ids(*prompt)) return {ids_at(*prompt, "prompt")};
  const json& first = prompt->front();
  if (first.is_number()) return {ids_at(*prompt, "prompt")};
  if (!first.is_string() && !is_array(first)) {
    refuse("prompt", "prompt[0] must be a text, a token id or an array of them, not {}", type_name(first));
  }
  if (static_cast<std::int64_t>(prompt->size()) > limits.max_sequences) {
    refuse("prompt", "there are {} prompts, and this server takes at most {} at once", prompt->size(),
           limits.max_sequences);
  }
  std::vector<Prompt> prompts;
  for (const json& value : *prompt) {
    const std::string place = fmt::format("prompt[{}]", prompts.size());
    if (is_array(value) != is_array(first) || value.is_string() != first.is_string()) {
      refuse("prompt", "{} is {}, but prompt[0] is {}: they must be alike", place, type_name(value), type_name(first));
    }
    if (first.is_string()) {
      prompts.emplace_back(value.get<std::string>());
    } else {
      prompts.emplace_back(ids_at(value, place));
    }
  }
  return prompts;
}

// Empty ones end nothing, and clients without an end-of-text token send them.
std::vector<std::string> stops_of(const Fields& fields) {
  const json* stop = fields.find("stop");
  if (stop == nullptr) return {};
  const json all = stop->is_string() ? json::array({*stop}) : *stop;
  if (!all.is_array()) refuse("stop", "stop must be a text or an array of texts, not {}", type_name(all));
  if (all.size() > kMostStops) refuse("stop", "stop has {} texts, and at most {} are taken", all.size(), kMostStops);
  std::vector<std::string> stops;
  for (const json& value : all) {
    if (!value.is_string()) refuse("stop", "stop must hold texts, not {}", type_name(value));
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() > kLongestStop)
      refuse("stop", "stop has a text of {} bytes, and at most {} are taken", text.size(), kLongestStop);
    if (!text.empty()) stops.push_back(text);
  }
  return stops;
}

float penalty_of(const Fields& fields, const char* name) {
  const float value = fields.number(name, 0.0F);
  if (std::abs(value) > 2) refuse(name, "{} is {}, expected a number from -2 to 2", name, value);
  return value;
}

// What SamplingOptions::check asks for too, but by the names that the fields have here.
void check_sampling(const SamplingOptions& sampling) {
  const auto expect = [](bool good, const char* name, float value, const char* what) {
    if (!good) refuse(name, "{} is {}, expected {}", name, value, what);
  };
  const float top_p = sampling.top_p, min_p = sampling.min_p;
  expect(sampling.temperature >= 0, "temperature", sampling.temperature, "0 or more");
  expect(top_p > 0 && top_p <= 1, "top_p", top_p, "more than 0 and at most 1");
  expect(min_p >= 0 && min_p < 1, "min_p", min_p, "at least 0 and less than 1");
  expect(sampling.repetition_penalty > 0, "repetition_penalty", sampling.repetition_penalty, "more than 0");
}

SamplingOptions sampling_of(const Fields& fields) {
  SamplingOptions sampling;
  sampling.temperature = fields.number("temperature", 1.0F);
  sampling.top_p = fields.number("top_p", 1.0F);
  sampling.min_p = fields.number("min_p", 0.0F);
  sampling.repetition_penalty = fields.number("repetition_penalty", 1.0F);
  sampling.presence_penalty = penalty_of(fields, "presence_penalty");
  sampling.frequency_penalty = penalty_of(fields, "frequency_penalty");
  // -1 is what some clients send for all.
  const auto top_k = fields.integer("top_k", -1, std::numeric_limits<std::int32_t>::max());
  sampling.top_k = static_cast<int>(std::max<std::int64_t>(top_k.value_or(0), 0));
  check_sampling(sampling);
  return sampling;
}

// {"17": -100, ...}: the ids are texts, as JSON's keys must be.
std::vector<TokenBias> biases_of(const Fields& fields, std::int64_t vocab_size) {
  const json* all = fields.find("logit_bias");
  if (all == nullptr) return {};
  if (!all->is_object()) refuse("logit_bias", "logit_bias must be an object, not {}", type_name(*all));
  if (all->size() > kMostBiases) {
    refuse("logit_bias", "logit_bias has {} tokens, and at most {} are taken", all->size(), kMostBiases);
  }
  std::vector<TokenBias> biases;
  for (const auto& [name, value] : all->items()) {
    std::int32_t token = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || end != name.data() + name.size() || token < 0 || token >= vocab_size) {
      refuse("logit_bias", "logit_bias has '{}', which is no token id from 0 to {}", name, vocab_size - 1);
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100)) {
      refuse("logit_bias", "logit_bias of {} must be a number from -100 to 100", token);
    }
    biases.push_back({token, static_cast<float>(value.get<double>())});
  }
  return biases;
}

// What other servers can do and this one cannot. What would change the answer is refused, unless it asks for what
// happens anyway; nothing of that kind is passed over.
void refuse_unsupported(const Fields& fields, std::int64_t n) {
  fields.only("suffix", {""});
  fields.only("best_of", {n});
  fields.only("use_beam_search", {false});
  fields.only("num_beams", {1});
  fields.only("length_penalty", {1});
  fields.only("response_format", {json{{"type", "text"}}});
  fields.only("truncate_prompt_tokens", {-1});
  fields.only("mirostat", {0});
  fields.only("typical_p", {1});
  fields.only("repeat_penalty", {1});
  fields.only("tfs_z", {1});
  fields.only("top_n_sigma", {-1});
  for (const char* name : {"top_a", "no_repeat_ngram_size", "dry_multiplier", "xtc_probability", "dynatemp_range",
                           "epsilon_cutoff", "eta_cutoff", "penalty_alpha", "smoothing_factor", "min_new_tokens"}) {
    fields.only(name, {0});
  }
  for (const char* name : {"guidance_scale", "cfg_scale", "encoder_repetition_penalty"}) fields.only(name, {1});
  fields.only("negative_prompt", {""});
  fields.only("return_tokens_as_token_ids", {false});
  fields.only("include_stop_str_in_output", {false});
  fields.only("skip_special_tokens", {true});
  fields.none_like("guided_");
  // An empty schema is any JSON, which is not any text.
  for (const char* name :
       {"prompt_logprobs", "json_schema", "regex", "ebnf", "stop_regex", "n_predict", "max_new_tokens", "samplers"}) {
    fields.only(name, {});
  }
  for (const char* name : {"grammar", "structured_outputs", "allowed_token_ids", "lora", "lora_request", "mirostat_tau",
                           "mirostat_eta", "tools", "functions", "prompt_embeds", "logits_processors", "images"}) {
    fields.only(name, {json::array(), json::object()});
  }
  // Without tools none is called, whatever is left to the model.
  for (const char* name : {"tool_choice", "function_call"}) fields.only(name, {"none", "auto"});
  fields.only("modalities", {json::array({"text"})});
  fields.only("audio", {json::object()});
  for (const char* name : {"bad_words", "banned_tokens", "banned_strings", "custom_token_bans"}) {
    fields.only(name, {json::array(), ""});
  }
}

void parse_stream(const Fields& fields, CompletionRequest& request) {
  request.stream = fields.flag("stream", false);
  const json* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) refuse("stream_options", "stream_options must be an object, not {}", type_name(*options));
  if (!request.stream) refuse("stream_options", "stream_options without stream");
  const auto usage = options->find("include_usage");
  if (usage == options->end() || usage->is_null()) return;
  if (!usage->is_boolean()) {
    refuse("stream_options", "stream_options.include_usage must be true or false, not {}", type_name(*usage));
  }
  request.stream_usage = usage->get<bool>();
}

// What completions and chats have in common, but for the number of tokens.
void parse_common(const Fields& fields, const Limits& limits, CompletionRequest& request) {
  // There is one model; whatever a client calls it, it is meant.
  if (const json* model = fields.find("model"); model != nullptr && !model->is_string()) {
    refuse("model", "model must be a text, not {}", type_name(*model));
  }
  request.n = fields.integer("n", 1, limits.max_sequences).value_or(1);
  refuse_unsupported(fields, request.n);
  request.stop = stops_of(fields);
  if (const json* ids = fields.find("stop_token_ids"); ids != nullptr) {
    request.stop_tokens = token_ids(*ids, "stop_token_ids", "stop_token_ids",
                                    static_cast<std::int64_t>(kMostStopTokens), limits.vocab_size);
  }
  parse_stream(fields, request);
  request.ignore_eos = fields.flag("ignore_eos", false);
  request.add_special_tokens = fields.flag("add_special_tokens", true);
  request.sampling = sampling_of(fields);
  request.bias = biases_of(fields, limits.vocab_size);
  request.state = fields.state_name("state");
  request.save_state = fields.state_name("save_state");
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    request.seeded = true;
    request.sampling.seed = static_cast<std::uint64_t>(*seed);
  }
}

void check_one_sequence(const CompletionRequest& request) {
  if (request.save_state.empty() || request.sequences() == 1) return;
  refuse("save_state", "save_state keeps one state, but there are {} sequences", request.sequences());
}

void parse_min_tokens(const Fields& fields, CompletionRequest& request) {
  request.min_tokens = fields.integer("min_tokens", 0, INT64_MAX).value_or(0);
  if (request.min_tokens > request.max_tokens) {
    refuse("min_tokens", "min_tokens is {}, more than the {} that may be generated", request.min_tokens,
           request.max_tokens);
  }
}

// A message's content is a text, or parts of type text, which belong together.
nlohmann::ordered_json message_of(const nlohmann::ordered_json& given, std::size_t index) {
  const std::string place = fmt::format("messages[{}]", index);
  if (!given.is_object()) refuse("messages", "{} must be an object, not {}", place, given.type_name());
  const auto role = given.find("role");
  if (role == given.end() || !role->is_string()) refuse("messages", "{}.role must be a text", place);
  const auto content = given.find("content");
  if (content == given.end()) refuse("messages", "{}.content is missing", place);
  for (const char* name : {"tool_calls", "tool_call_id", "function_call", "audio"}) {
    if (given.contains(name) && !given[name].empty()) refuse("messages", "{}.{} is not supported", place, name);
  }
  nlohmann::ordered_json message = given;
  if (content->is_string()) return message;
  if (!content->is_array()) refuse("messages", "{}.content must be a text or parts of it", place);
  std::string text;
  for (const auto& part : *content) {
    if (!part.is_object() || text_member(part, "type") != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      refuse("messages", "{}.content has a part that is no text", place);
    }
    text += part["text"].get<std::string>();
  }
  message["content"] = text;
  return message;
}

}  // namespace

CompletionRequest parse_completion(std::string_view body, const Limits& limits) {
  const Fields fields(body);
  CompletionRequest request;
  parse_common(fields, limits, request);
  fields.only("messages", {json::array()});  // those are of chats
  // A state may go on by itself.
  const bool nothing_more = !request.state.empty() && fields.find("prompt") == nullptr;
  request.prompts = nothing_more ? std::vector<Prompt>{std::string()} : prompts_of(fields, limits);
  check_one_sequence(request);
  if (request.sequences() > limits.max_sequences) {
    refuse("n", "{} prompts with n = {} are {} sequences, and this server takes at most {} at once",
           request.prompts.size(), request.n, request.sequences(), limits.max_sequences);
  }
  request.max_tokens = fields.integer("max_tokens", 0, limits.max_tokens)
                           .value_or(std::min<std::int64_t>(request.max_tokens, limits.max_tokens));
  request.echo = fields.flag("echo", false);
  if (request.max_tokens == 0 && !request.echo) refuse("max_tokens", "max_tokens is 0: then only echo gives an answer");
  request.logprobs = fields.integer("logprobs", 0, kMostLogprobs);
  parse_min_tokens(fields, request);
  return request;
}

CompletionRequest parse_chat(std::string_view body, const Limits& limits) {
  const Fields fields(body);
  CompletionRequest request;
  request.chat = true;
  parse_common(fields, limits, request);
  fields.only("echo", {false});
  fields.only("prompt", {});  // a chat's is made of its messages
  fields.only("continue_final_message", {false});
  fields.only("add_generation_prompt", {true});
  fields.only("chat_template", {});
  fields.only("chat_template_kwargs", {json::object()});
  fields.only("documents", {json::array()});
  const json* messages = fields.find("messages");
  constexpr const char* kMessages = "an array of objects with role and content";
  if (messages == nullptr) refuse("messages", "messages is missing: {}", kMessages);
  if (!messages->is_array()) refuse("messages", "messages must be {}, not {}", kMessages, type_name(*messages));
  if (messages->empty()) refuse("messages", "messages is empty: expected {}", kMessages);
  if (!request.save_state.empty() && request.n > 1) {
    refuse("save_state", "save_state keeps one state, but n is {}", request.n);
  }
  if (messages->size() > kMostMessages) {
    refuse("messages", "there are {} messages, and at most {} are taken", messages->size(), kMostMessages);
  }
  // Again, with the keys in the order of the text, which templates can see.
  const auto ordered = parse_ordered_json(body, "the body")["messages"];
  request.messages = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < ordered.size(); ++i) request.messages.push_back(message_of(ordered[i], i));
  const char* name = fields.find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  request.max_tokens = fields.integer(name, 1, limits.max_tokens).value_or(limits.max_tokens);
  const auto top = fields.integer("top_logprobs", 0, kMostLogprobs);
  if (fields.flag("logprobs", false)) {
    request.logprobs = top.value_or(0);
  } else if (top) {
    refuse("top_logprobs", "top_logprobs without logprobs");
  }
  parse_min_tokens(fields, request);
  return request;
}

CompletionRequest parse_state(std::string_view body, const Limits& limits) {
  const Fields fields(body);
  CompletionRequest request;
  request.only_state = true;
  request.max_tokens = 0;
  request.save_state = fields.state_name("name");
  if (request.save_state.empty()) refuse("name", "name is missing: that of the state");
  request.state = fields.state_name("from");
  refuse_unsupported(fields, request.n);
  fields.only("messages", {json::array()});
  request.add_special_tokens = fields.flag("add_special_tokens", true);
  if (fields.find("prompt") != nullptr) request.prompts = prompts_of(fields, limits);
  if (request.prompts.empty() && request.state.empty()) {
    refuse("prompt", "there is neither a prompt to read nor a state (from) to go on from");
  }
  if (request.prompts.size() > 1) {
    refuse("prompt", "there are {} prompts, and a state is that of one", request.prompts.size());
  }
  return request;
}

TokenizeRequest parse_tokenize(std::string_view body) {
  const Fields fields(body);
  const json* prompt = fields.find("prompt");
  if (prompt == nullptr || !prompt->is_string()) refuse("prompt", "prompt is missing, or no text");
  return {prompt->get<std::string>(), fields.flag("add_special_tokens", true)};
}

std::vector<std::int32_t> parse_detokenize(std::string_view body, const Limits& limits) {
  const Fields fields(body);
  const json* tokens = fields.find("tokens");
  if (tokens == nullptr) refuse("tokens", "tokens is missing: an array of token ids");
  // As many as the body has room for: a text is long before its tokens are too many.
  return token_ids(*tokens, "tokens", "tokens", INT64_MAX, limits.vocab_size);
}

}  // namespace qdelta::serve
