#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/unicode.h"
#include "template/text.h"

namespace qdelta::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style)
      : budget_(&budget),
        style_(&style),
        between_(style.between.value_or(style.indent ? "," : ", ")),
        after_key_(style.after_key.value_or(": ")) {}

  void append(std::string& out, const Value& value, int level) {
    const Budget::Level guard(*budget_);
    const std::size_t before = out.size();
    if (const Text* text = value.text()) {
      append_string(out, text->bytes);
    } else if (value.list_or_tuple() != nullptr) {
      append_list(out, value.list_or_tuple()->elements, level);
    } else if (value.dict() != nullptr) {
      append_dict(out, *value.dict(), level);
    } else {
      out += simple(value);
    }
    budget_->charge(1);
    if (out.size() > budget_->limits().output) budget_->charge_bytes(out.size());
    if (value.text() != nullptr) budget_->charge((out.size() - before) / 16);
  }

 private:
  [[nodiscard]] std::string simple(const Value& value) const {
    if (value.is_none()) return "null";
    if (value.is<bool>()) return value.integer() != 0 ? "true" : "false";
    if (value.is_integral()) return fmt::format("{}", value.integer());
    if (!value.is<double>()) budget_->fail("{} cannot be written as JSON", type_name(value));
    if (std::isnan(value.real())) return "NaN";
    if (std::isinf(value.real())) return value.real() > 0 ? "Infinity" : "-Infinity";
    return float_repr(value.real());
  }

  void append_string(std::string& out, std::string_view text) const {
    out += '"';
    for (std::size_t at = 0; at < text.size();) {
      const unicode::Character next = unicode::character_at(text.data() + at);
      append_character(out, next.code, text.substr(at, next.length));
      at += next.length;
    }
    out += '"';
  }

  void append_character(std::string& out, char32_t code, std::string_view bytes) const {
    static constexpr std::string_view kShort = "\"\"\\\\\nn\rr\tt\bb\ff";  // pairs of a character and its letter
    for (std::size_t i = 0; i < kShort.size(); i += 2) {
      if (code != static_cast<char32_t>(static_cast<unsigned char>(kShort[i]))) continue;
      out += '\\';
      out += kShort[i + 1];
      return;
    }
    const auto unit = [&out](std::uint32_t value) { out += fmt::format("\\u{:04x}", value); };
    if (code < 0x20 || (style_->ascii && code >= 0x7f && code < 0x10000 && code != 0x7f)) {
      unit(static_cast<std::uint32_t>(code));
    } else if (style_->ascii && code >= 0x10000) {
      unit(0xd800U + ((static_cast<std::uint32_t>(code) - 0x10000U) >> 10));
      unit(0xdc00U + ((static_cast<std::uint32_t>(code) - 0x10000U) & 0x3ffU));
    } else {
      out += bytes;
    }
  }

  void new_line(std::string& out, int level) {
    if (!style_->indent) return;
    out += '\n';
    budget_->charge_bytes(out.size() + style_->indent->size() * static_cast<std::size_t>(level));
    for (int i = 0; i < level; ++i) out += *style_->indent;
  }

  void append_list(std::string& out, const std::vector<Value>& elements, int level) {
    if (elements.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    bool first = true;
    for (const Value& element : elements) {
      if (!first) out += between_;
      first = false;
      new_line(out, level + 1);
      append(out, element, level + 1);
    }
    new_line(out, level);
    out += ']';
  }

  // Python sorts the keys before it makes text of them.
  [[nodiscard]] std::vector<Dict::Entry> entries(const Dict& dict) const {
    std::vector<Dict::Entry> all = dict.entries();
    if (!style_->sort_keys) return all;
    budget_->charge(all.size());
    std::stable_sort(all.begin(), all.end(), [this](const Dict::Entry& a, const Dict::Entry& b) {
      return order(*budget_, a.first, b.first) == -1;
    });
    return all;
  }

  void append_dict(std::string& out, const Dict& dict, int level) {
    if (dict.entries().empty()) {
      out += "{}";
      return;
    }
    out += '{';
    bool first = true;
    for (const auto& [key, value] : entries(dict)) {
      if (!first) out += between_;
      first = false;
      new_line(out, level + 1);
      if (key.text() == nullptr && key.sequence() != nullptr) budget_->fail("a tuple cannot be a key in JSON");
      append_string(out, key.text() != nullptr ? key.text()->bytes : simple(key));
      out += after_key_;
      append(out, value, level + 1);
    }
    new_line(out, level);
    out += '}';
  }

  Budget* budget_;
  const JsonStyle* style_;
  std::string between_, after_key_;
};

}  // namespace

std::string to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(budget, style).append(out, value, 0);
  return out;
}

}  // namespace qdelta::jinja
