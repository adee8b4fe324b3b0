// The chat template of a model folder: from the messages of a conversation to the tokens that the model is given.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "template/jinja.h"

namespace qdelta {

class ChatTemplate {
 public:
  // The tokenizer must live as long.
  ChatTemplate(std::string_view source, const Tokenizer& tokenizer);
  // What a folder says: chat_template.jinja, or chat_template in tokenizer_config.json (of several the one named
  // "default"). Null where it says nothing. Throws Error where there is a template that cannot be read.
  [[nodiscard]] static std::unique_ptr<ChatTemplate> load(const std::string& folder, const Tokenizer& tokenizer);

  // `messages`: [{"role": ..., "content": ...}, ...]. Throws Error, also where the template itself refuses them.
  // Several threads may render at once.
  [[nodiscard]] std::string render(const nlohmann::ordered_json& messages, bool add_generation_prompt) const;
  [[nodiscard]] std::vector<std::int32_t> encode(const nlohmann::ordered_json& messages,
                                                 bool add_generation_prompt) const;

 private:
  // Templates spell special tokens out. Where the tokenizer does not recognise them in a text, this does.
  [[nodiscard]] std::vector<std::int32_t> encode_text(const std::string& text) const;

  const Tokenizer& tokenizer_;
  jinja::Template template_;
  std::vector<std::pair<std::string, std::int32_t>> spelled_;  // the special tokens that must be looked for
};

}  // namespace qdelta
