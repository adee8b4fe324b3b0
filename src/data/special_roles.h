// Which tokens start, end and fill up a text: files beside the tokenizer say so, tokenizer_config.json or
// special_tokens_map.json.
#pragma once

#include <optional>
#include <string>

#include "data/checked_json.h"

namespace qdelta {

struct SpecialRoles {
  std::optional<std::string> bos, eos, pad;
  std::optional<bool> add_bos, add_eos;
  std::optional<bool> split_special;  // special tokens that stand in a text are text

  // Takes what `json` (one of those files) says and this does not know yet.
  void learn(const JsonAt& json) {
    const auto token = [&](const char* key, std::optional<std::string>& role) {
      if (role || !json.has(key) || json.at(key).is_null()) return;
      const JsonAt value = json.at(key);
      role = value.value().is_object() ? value.at("content").text() : value.text();
    };
    const auto flag = [&](const char* key, std::optional<bool>& role) {
      if (!role && json.has(key) && !json.at(key).is_null()) role = json.at(key).boolean();
    };
    token("bos_token", bos);
    token("eos_token", eos);
    token("pad_token", pad);
    flag("add_bos_token", add_bos);
    flag("add_eos_token", add_eos);
    flag("split_special_tokens", split_special);
  }
};

}  // namespace qdelta
