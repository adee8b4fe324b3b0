// Feeds bytes to the interpreter of chat templates: the template itself and, where a line of its own says ---, the
// variables as JSON after it. What is refused must be an Error; what is rendered must be UTF-8 within the limits.
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "expect.h"
#include "io/untrusted_text.h"
#include "template/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto kVariables = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "Hé"}, {"role": "assistant", "content": null, "tool_calls": [1, 2.5]}],
          "tools": [{"name": "f", "arguments": {"b": [true], "a": "x"}}], "add_generation_prompt": true})");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = input.find("\n---\n");
  nlohmann::ordered_json variables = kVariables;
  if (cut != std::string_view::npos) {
    auto parsed = nlohmann::ordered_json::parse(input.substr(cut + 5), nullptr, false);
    if (!parsed.is_discarded()) variables = std::move(parsed);
  }
  const qdelta::jinja::Limits limits{.steps = 20'000, .output = 20'000, .depth = 400};
  qdelta::fuzz::may_refuse(
      [&] {
        const std::string text = qdelta::jinja::Template(input.substr(0, cut)).render(variables, limits);
        qdelta::fuzz::expect(text.size() <= limits.output, "more text than allowed");
        qdelta::fuzz::expect(!qdelta::first_invalid_utf8(text), "text that is not UTF-8");
      },
      qdelta::Status::invalid_argument);
  return 0;
}
