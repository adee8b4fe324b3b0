#include "template/chat_template.h"

#include <filesystem>
#include <optional>

#include "data/checked_json.h"
#include "io/parse_json.h"
#include "io/regular_file.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

// A text, or several with names.
std::optional<std::string> source_in(const nlohmann::json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const nlohmann::json& one : *found) {
    if (one.is_object() && text_member(one, "name") == "default" && one.contains("template") &&
        one["template"].is_string()) {
      return one["template"].get<std::string>();
    }
  }
  return std::nullopt;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), template_(source) {
  for (const std::optional<std::int32_t> id : {tokenizer.bos(), tokenizer.eos()}) {
    if (!id) continue;
    const std::string name = tokenizer.token(*id);
    if (!name.empty() && tokenizer.encode(name) != std::vector<std::int32_t>{*id}) spelled_.emplace_back(name, *id);
  }
}

std::unique_ptr<ChatTemplate> ChatTemplate::load(const std::string& folder, const Tokenizer& tokenizer) {
  std::optional<std::string> source = read_text_file_if_there((fs::path(folder) / "chat_template.jinja").string());
  if (!source) {
    const fs::path config = fs::path(folder) / "tokenizer_config.json";
    const std::optional<std::string> text = read_text_file_if_there(config.string());
    if (text) source = source_in(parse_json(*text, config.string()));
  }
  return source ? std::make_unique<ChatTemplate>(*source, tokenizer) : nullptr;
}

std::string ChatTemplate::render(const nlohmann::ordered_json& messages, bool add_generation_prompt) const {
  const auto spelled = [this](std::optional<std::int32_t> id) { return id ? tokenizer_.token(*id) : std::string(); };
  return template_.render({{"messages", messages},
                           {"add_generation_prompt", add_generation_prompt},
                           {"bos_token", spelled(tokenizer_.bos())},
                           {"eos_token", spelled(tokenizer_.eos())}});
}

std::vector<std::int32_t> ChatTemplate::encode(const nlohmann::ordered_json& messages,
                                               bool add_generation_prompt) const {
  return encode_text(render(messages, add_generation_prompt));
}

std::vector<std::int32_t> ChatTemplate::encode_text(const std::string& text) const {
  struct Spelled {
    std::string_view name;
    std::int32_t id;
    std::size_t at;  // where it comes next: looked for once, or the time would be quadratic in the text
  };
  std::vector<Spelled> coming;
  for (const auto& [name, id] : spelled_) coming.push_back({name, id, text.find(name)});
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t next = text.size();
    const Spelled* token = nullptr;
    for (Spelled& one : coming) {
      if (one.at < at) one.at = text.find(one.name, at);
      if (one.at >= next) continue;
      next = one.at;
      token = &one;
    }
    if (next > at) {
      const std::vector<std::int32_t> between = tokenizer_.encode(std::string_view(text).substr(at, next - at));
      ids.insert(ids.end(), between.begin(), between.end());
    }
    at = next;
    if (token == nullptr) continue;
    ids.push_back(token->id);
    at += token->name.size();
  }
  return ids;
}

}  // namespace qdelta
