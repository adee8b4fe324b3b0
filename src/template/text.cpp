#include "template/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "data/unicode.h"

namespace qdelta::jinja {
namespace {

struct CodeRange {
  char32_t first, last;
};
// What str.isprintable() refuses beyond ASCII, but for characters that Unicode has not assigned.
constexpr CodeRange kNotPrintable[] = {{0x80, 0xa0},       {0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},
                                       {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},
                                       {0x1680, 0x1680},   {0x180e, 0x180e},   {0x2000, 0x200f},   {0x2028, 0x202f},
                                       {0x205f, 0x206f},   {0x3000, 0x3000},   {0xd800, 0xf8ff},   {0xfdd0, 0xfdef},
                                       {0xfeff, 0xfeff},   {0xfff0, 0xfffb},   {0xfffe, 0xffff},   {0x110bd, 0x110bd},
                                       {0x110cd, 0x110cd}, {0x13430, 0x13438}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
                                       {0xe0000, 0xe00ff}, {0xe01f0, 0x10ffff}};

bool is_printable(char32_t code) {
  if (code < 0x7f) return code >= 0x20;
  const auto* range = std::lower_bound(std::begin(kNotPrintable), std::end(kNotPrintable), code,
                                       [](const CodeRange& row, char32_t c) { return row.last < c; });
  return code != 0x7f && (range == std::end(kNotPrintable) || code < range->first);
}

void append_repr(std::string& out, std::string_view text) {
  const bool quotes = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char32_t quote = quotes ? '"' : '\'';
  unicode::append(out, quote);
  for (std::size_t at = 0; at < text.size();) {
    const unicode::Character next = unicode::character_at(text.data() + at);
    if (next.code == quote || next.code == '\\') {
      out += '\\';
      unicode::append(out, next.code);
    } else if (next.code == '\n') {
      out += "\\n";
    } else if (next.code == '\r') {
      out += "\\r";
    } else if (next.code == '\t') {
      out += "\\t";
    } else if (is_printable(next.code)) {
      out += text.substr(at, next.length);
    } else {
      const auto code = static_cast<std::uint32_t>(next.code);
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
    at += next.length;
  }
  unicode::append(out, quote);
}

class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(&budget) {}

  void append(std::string& out, const Value& value) {
    const Budget::Level level(*budget_);
    const std::size_t before = out.size();
    if (value.is_none()) {
      out += "None";
    } else if (value.is_undefined()) {
      out += "Undefined";
    } else if (value.is<bool>()) {
      out += value.integer() != 0 ? "True" : "False";
    } else if (value.is_integral()) {
      out += fmt::format("{}", value.integer());
    } else if (value.is<double>()) {
      out += float_repr(value.real());
    } else if (const Text* text = value.text()) {
      if (text->markup) budget_->unsupported("the result of 'safe' or 'escape' within a list or dict that is printed");
      append_repr(out, text->bytes);
    } else if (const Range* range = value.range()) {
      out += range->step == 1 ? fmt::format("range({}, {})", range->start, range->stop)
                              : fmt::format("range({}, {}, {})", range->start, range->stop, range->step);
    } else if (value.sequence() != nullptr) {
      append_sequence(out, *value.sequence());
      return;  // what is in it has been charged for
    } else if (value.dict() != nullptr) {
      append_dict(out, *value.dict());
      return;
    } else {
      budget_->unsupported(fmt::format("{} as text", type_name(value)));
    }
    check(out, before);
  }

 private:
  void check(const std::string& out, std::size_t before) {
    budget_->charge_bytes(out.size() - before);
    if (out.size() > budget_->limits().output) budget_->charge_bytes(out.size());
  }

  void append_sequence(std::string& out, const Sequence& sequence) {
    const bool tuple = sequence.kind == SequenceKind::tuple;
    const std::string_view view = sequence.kind == SequenceKind::keys     ? "dict_keys("
                                  : sequence.kind == SequenceKind::values ? "dict_values("
                                  : sequence.kind == SequenceKind::items  ? "dict_items("
                                                                          : "";
    out += view;
    out += tuple ? '(' : '[';
    bool first = true;
    for (const Value& element : sequence.elements) {
      if (!first) out += ", ";
      first = false;
      append(out, element);
    }
    if (tuple && sequence.elements.size() == 1) out += ',';
    out += tuple ? ')' : ']';
    if (!view.empty()) out += ')';
    budget_->charge(1);
  }

  void append_dict(std::string& out, const Dict& dict) {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : dict.entries()) {
      if (!first) out += ", ";
      first = false;
      append(out, key);
      out += ": ";
      append(out, value);
    }
    out += '}';
    budget_->charge(1);
  }

  Budget* budget_;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string repr(Budget& budget, const Value& value) {
  std::string out;
  Printer(budget).append(out, value);
  return out;
}

std::string str(Budget& budget, const Value& value) {
  if (value.is_undefined()) return {};
  if (const Text* text = value.text()) {
    budget.charge_bytes(text->bytes.size());
    return text->bytes;
  }
  return repr(budget, value);
}

}  // namespace qdelta::jinja
