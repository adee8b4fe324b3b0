// What clients ask for: from the text of a request's body to a checked request, or an ApiError that says which field is
// wrong and what would be right. Nothing here knows a model or a socket.
//
// Fields that are null count as not given. Fields that nobody knows are passed over, as other servers do; those that
// are known elsewhere and would change the answer are refused, unless they ask for what happens anyway.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "infer/sampler.h"
#include "kernels/sampling.h"

namespace qdelta::serve {

struct Limits {
  std::int64_t vocab_size = 0;        // of the model; token ids must be below it
  std::int64_t max_sequences = 256;   // prompts times n in one request
  std::int64_t max_prompt = 32768;    // tokens of one prompt
  std::int64_t max_request = 262144;  // tokens of all prompts times n
  std::int64_t max_tokens = 4096;     // to generate for one
};

inline constexpr std::int64_t kMostLogprobs = 20;
inline constexpr std::size_t kMostStopTokens = 7;  // with the end-of-text token as many as a sampler can hold back
inline constexpr std::size_t kMostBiases = 1024;
inline constexpr std::size_t kMostMessages = 4096;
inline constexpr std::size_t kMostStops = 64;
inline constexpr std::size_t kLongestStop = 1024;  // bytes

using Prompt = std::variant<std::string, std::vector<std::int32_t>>;

// NOLINTNEXTLINE(bugprone-exception-escape): moving JSON is not declared noexcept.
struct CompletionRequest {
  std::vector<Prompt> prompts;           // of a chat none, until its messages have been rendered
  nlohmann::ordered_json messages;       // of a chat
  SamplingOptions sampling;              // its seed only where `seeded`
  bool seeded = false;                   // else every sequence draws a seed of its own
  std::int64_t max_tokens = 16;          // 0 only with echo
  std::int64_t n = 1;                    // sequences for each prompt
  std::optional<std::int64_t> logprobs;  // so many of the most likely tokens with theirs
  std::vector<std::string> stop;
  bool chat = false;          // a message of a conversation, not a text
  bool echo = false;          // the prompt in front of the answer
  bool stream = false;        // in pieces, as they come
  bool stream_usage = false;  // and at their end the number of tokens
  bool ignore_eos = false;    // go on after the end-of-text token
  std::vector<std::int32_t> stop_tokens;
  std::int64_t min_tokens = 0;
  std::vector<TokenBias> bias;
  bool add_special_tokens = true;  // a text begins with the begin-of-text token
  std::string state;               // the name of one that the prompts go on from; empty: none
  std::string save_state;          // the name for the state at the end of the one sequence; empty: it is not kept
  bool only_state = false;         // the prompt is read for its state, and nothing is generated

  // How many sequences.
  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(prompts.size()) * n; }
};

struct TokenizeRequest {
  std::string prompt;
  bool add_special_tokens = true;
};

// Throw ApiError.
[[nodiscard]] CompletionRequest parse_completion(std::string_view body, const Limits& limits);
// A state to be kept: that of a prompt, behind another state or not, or a copy of another (then there is no prompt).
[[nodiscard]] CompletionRequest parse_state(std::string_view body, const Limits& limits);
[[nodiscard]] CompletionRequest parse_chat(std::string_view body, const Limits& limits);
[[nodiscard]] TokenizeRequest parse_tokenize(std::string_view body);
[[nodiscard]] std::vector<std::int32_t> parse_detokenize(std::string_view body, const Limits& limits);

}  // namespace qdelta::serve
