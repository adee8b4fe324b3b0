// Feeds bytes to the parsers of the server's requests. What they accept must be within the limits; what they refuse
// must be an ApiError of the client's that can be sent as JSON.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "expect.h"
#include "serve/api_error.h"
#include "serve/request.h"
#include "serve/state_name.h"

namespace {

using qdelta::fuzz::expect;
using qdelta::serve::ApiError;

template <class Action>
void guarded(const Action& action) {
  try {
    action();
  } catch (const ApiError& error) {
    expect(error.status() == 400, error.what());
    expect(std::string_view(error.what()).size() < 4000, "a message that nobody can read");
    expect(!error.body().dump().empty(), "an error without a body");
  }
}

void check(const qdelta::serve::CompletionRequest& request, const qdelta::serve::Limits& limits) {
  expect(request.n >= 1 && !request.prompts.empty(), "no sequences");
  expect(request.sequences() <= limits.max_sequences, "too many sequences");
  expect(request.max_tokens >= (request.echo ? 0 : 1) && request.max_tokens <= limits.max_tokens, "tokens");
  expect(!request.logprobs || (*request.logprobs >= 0 && *request.logprobs <= qdelta::serve::kMostLogprobs), "scores");
  expect(request.stop.size() <= qdelta::serve::kMostStops, "stops");
  for (const std::string& stop : request.stop) expect(!stop.empty(), "an empty stop");
  request.sampling.check();
  for (const qdelta::serve::Prompt& prompt : request.prompts) {
    const auto* ids = std::get_if<std::vector<std::int32_t>>(&prompt);
    if (ids == nullptr) continue;
    expect(!ids->empty() && static_cast<std::int64_t>(ids->size()) <= limits.max_prompt, "the length of a prompt");
    for (const std::int32_t id : *ids) expect(id >= 0 && id < limits.vocab_size, "a token that is none");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  qdelta::serve::Limits limits;
  limits.vocab_size = 300;
  limits.max_sequences = 6;
  limits.max_prompt = 10;
  limits.max_tokens = 100;
  guarded([&] { check(qdelta::serve::parse_completion(body, limits), limits); });
  guarded([&] { static_cast<void>(qdelta::serve::parse_chat(body, limits)); });
  guarded([&] {
    const qdelta::serve::CompletionRequest state = qdelta::serve::parse_state(body, limits);
    expect(qdelta::serve::is_state_name(state.save_state), "a name that is none");
    expect(state.state.empty() || qdelta::serve::is_state_name(state.state), "a name that is none");
    expect(state.prompts.size() == 1 || !state.state.empty(), "nothing to keep");
  });
  guarded([&] { static_cast<void>(qdelta::serve::parse_tokenize(body)); });
  guarded([&] {
    for (const std::int32_t id : qdelta::serve::parse_detokenize(body, limits)) {
      expect(id >= 0 && id < limits.vocab_size, "a token that is none");
    }
  });
  return 0;
}
