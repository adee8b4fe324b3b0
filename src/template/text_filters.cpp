// Filters of text and of numbers.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "template/builtins.h"
#include "template/interpreter.h"
#include "template/strings.h"
#include "template/text.h"

namespace qdelta::jinja {
namespace {

// What soft_str() makes of the value: strings keep their mark.
struct Soft {
  std::string bytes;
  bool markup = false;
};
Soft soft(Call& call) { return {str(call.budget, call.self), call.self.text() != nullptr && call.self.text()->markup}; }

template <std::string (*change)(std::string_view)>
Value filter_case(Call& call) {
  const Soft text = soft(call);
  return Value::text(change(text.bytes), text.markup);
}

Value filter_title(Call& call) { return Value::text(titled_words(soft(call).bytes)); }

Value filter_trim(Call& call) {
  const Soft text = soft(call);
  if (!call.has(0) || call.at(0).is_none()) return Value::text(stripped(text.bytes, Side::both), text.markup);
  return Value::text(stripped(text.bytes, Side::both, call.text(0).bytes), text.markup);
}

Value filter_string(Call& call) {
  return call.self.text() != nullptr ? call.self : Value::text(str(call.budget, call.self));
}

Value filter_safe(Call& call) { return Value::text(str(call.budget, call.self), true); }

Value filter_escape(Call& call) {
  const Soft text = soft(call);
  const std::string result = text.markup ? text.bytes : escaped(text.bytes);
  call.budget.charge_bytes(result.size());
  return Value::text(result, true);
}

Value filter_force_escape(Call& call) {
  const std::string result = escaped(str(call.budget, call.self));
  call.budget.charge_bytes(result.size());
  return Value::text(result, true);
}

// How long the text with the replacements will be, before it is made.
void charge_replacement(Call& call, std::string_view text, std::string_view from, std::string_view to) {
  std::size_t count = 0;
  if (from.empty()) {
    count = text.size() + 1;
  } else {
    for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, at + from.size()))
      ++count;
  }
  call.budget.charge_bytes(text.size() + count * to.size());
}

Value filter_replace(Call& call) {
  const std::string text = str(call.budget, call.self);
  const std::string from = str(call.budget, call.at(0));
  const std::string to = str(call.budget, call.at(1));
  const std::int64_t most = call.has(2) && !call.at(2).is_none() ? call.integer(2) : -1;
  charge_replacement(call, text, from, to);
  return Value::text(replaced(text, from, to, most));
}

Value filter_indent(Call& call) {
  if (call.self.is_undefined()) call.budget.fail("{} is undefined", call.self.undefined_name());
  if (call.self.text() == nullptr) call.budget.fail("'indent' needs a string, not {}", type_name(call.self));
  const Text& text = *call.self.text();
  std::string indent(4, ' ');
  if (call.has(0) && call.at(0).text() != nullptr) {
    indent = call.at(0).text()->bytes;
  } else if (call.has(0)) {
    const std::int64_t width = std::max<std::int64_t>(call.integer(0), 0);
    call.budget.charge_bytes(static_cast<std::size_t>(width));
    indent.assign(static_cast<std::size_t>(width), ' ');
  }
  if (text.markup) call.budget.unsupported("the filter 'indent' of the result of 'safe' or 'escape'");
  const std::string with_end = text.bytes + '\n';
  const std::vector<std::string_view> lines = split_lines(with_end, false);
  call.budget.charge_bytes(text.bytes.size() + lines.size() * std::min(indent.size() + 1, call.budget.limits().output));
  const bool blank = call.flag(2);
  std::string result = call.flag(1) ? indent : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    if (i > 0 && (blank || !lines[i].empty())) result += indent;
    result += lines[i];
  }
  return Value::text(result);
}

Value filter_tojson(Call& call) {
  JsonStyle style;
  style.ascii = call.flag(0);
  if (call.has(1) && call.at(1).text() != nullptr) {
    style.indent = call.at(1).text()->bytes;
  } else if (call.has(1) && !call.at(1).is_none()) {
    const std::int64_t width = std::max<std::int64_t>(call.integer(1), 0);
    call.budget.charge_bytes(static_cast<std::size_t>(width));
    style.indent = std::string(static_cast<std::size_t>(width), ' ');
  }
  if (call.has(2) && !call.at(2).is_none()) {
    const std::vector<Value> two = elements_of(call.budget, call.at(2));
    if (two.size() != 2 || two[0].text() == nullptr || two[1].text() == nullptr) {
      call.budget.fail("'tojson' needs two strings as separators");
    }
    style.between = two[0].text()->bytes;
    style.after_key = two[1].text()->bytes;
  }
  style.sort_keys = call.flag(3);
  return Value::text(to_json(call.budget, call.self, style));
}

Value filter_abs(Call& call) {
  if (call.self.is_undefined()) call.budget.fail("{} is undefined", call.self.undefined_name());
  if (!call.self.is_number()) call.budget.fail("'abs' needs a number, not {}", type_name(call.self));
  if (call.self.is<double>()) return {std::fabs(call.self.real())};
  if (call.self.integer() == std::numeric_limits<std::int64_t>::min()) {
    call.budget.unsupported("an integer beyond 64 bits");
  }
  return {std::abs(call.self.integer())};
}

Value integer_from(Call& call, double value, const Value& otherwise) {
  if (!std::isfinite(value)) return otherwise;
  if (std::fabs(value) >= 9.2e18) call.budget.unsupported("an integer beyond 64 bits");
  return {static_cast<std::int64_t>(value)};
}

Value filter_int(Call& call) {
  Value otherwise = call.has(0) ? call.at(0) : Value(std::int64_t{0});
  if (call.self.is_undefined()) call.budget.fail("{} is undefined", call.self.undefined_name());
  if (call.self.is_integral()) return {call.self.integer()};
  if (call.self.is<double>()) {
    if (std::isinf(call.self.real())) call.budget.fail("'int' of infinity");
    return integer_from(call, call.self.real(), otherwise);
  }
  const Text* text = call.self.text();
  if (text == nullptr) return otherwise;
  if (const auto value = parse_integer(call.budget, text->bytes, call.has(1) ? call.integer(1) : 10)) return {*value};
  const std::optional<double> real = parse_real(text->bytes);
  return real ? integer_from(call, *real, otherwise) : otherwise;
}

Value filter_float(Call& call) {
  if (call.self.is_undefined()) call.budget.fail("{} is undefined", call.self.undefined_name());
  if (call.self.is_number()) return {call.self.real()};
  if (call.self.text() != nullptr) {
    if (const std::optional<double> value = parse_real(call.self.text()->bytes)) return {*value};
  }
  return call.has(0) ? call.at(0) : Value(0.0);
}

Value filter_round(Call& call) {
  constexpr std::int64_t kMostDigits = 30;
  if (call.self.is_undefined()) call.budget.fail("{} is undefined", call.self.undefined_name());
  if (!call.self.is_number()) call.budget.fail("'round' needs a number, not {}", type_name(call.self));
  const std::int64_t digits = call.has(0) ? call.integer(0) : 0;
  if (digits < 0 || digits > kMostDigits) call.budget.unsupported(fmt::format("'round' to {} digits", digits));
  const std::string method = call.has(1) ? call.text(1).bytes : "common";
  if (method == "common") {
    if (call.self.is_integral()) return {call.self.integer()};
    if (!std::isfinite(call.self.real())) return call.self;
    return {std::strtod(fmt::format("{:.{}f}", call.self.real(), digits).c_str(), nullptr)};
  }
  if (method != "ceil" && method != "floor") call.budget.fail("'round' knows common, ceil and floor");
  if (!std::isfinite(call.self.real())) call.budget.fail("'round' of what is not finite");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = call.self.real() * scale;
  return {(method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale};
}

constexpr std::array<Builtin, 17> kTextFilters = {
    {{"abs", "", filter_abs},
     {"capitalize", "", filter_case<capitalized>},
     {"e", "", filter_escape},
     {"escape", "", filter_escape},
     {"float", "/ default", filter_float},
     {"forceescape", "", filter_force_escape},
     {"indent", "/ width first blank", filter_indent},
     {"int", "/ default base", filter_int},
     {"lower", "", filter_case<lower>},
     {"replace", "old new / count", filter_replace},
     {"round", "/ precision method", filter_round},
     {"safe", "", filter_safe},
     {"string", "", filter_string},
     {"title", "", filter_title},
     {"tojson", "/ ensure_ascii indent separators sort_keys", filter_tojson},
     {"trim", "/ chars", filter_trim},
     {"upper", "", filter_case<upper>}}};

// Without the underscores that may stand between digits; nullopt where one stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string result;
  const auto digit = [&](std::size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i]));
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result += text[i];
    } else if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return std::nullopt;
    }
  }
  return result;
}

}  // namespace

std::optional<std::int64_t> parse_integer(Budget& budget, std::string_view text, std::int64_t base) {
  if (base != 10 && base != 16 && base != 8 && base != 2) budget.unsupported(fmt::format("'int' with base {}", base));
  text = stripped(text, Side::both);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const char letter = base == 16 ? 'x' : base == 8 ? 'o' : 'b';
  if (base != 10 && text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == letter) {
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
  }
  const std::optional<std::string> digits = without_underscores(text);
  if (!digits || digits->empty() || !std::isalnum(static_cast<unsigned char>((*digits)[0]))) return std::nullopt;
  std::uint64_t value = 0;
  const auto result = std::from_chars(digits->data(), digits->data() + digits->size(), value, static_cast<int>(base));
  if (result.ptr != digits->data() + digits->size()) return std::nullopt;
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (result.ec != std::errc() || value > most) budget.unsupported("an integer beyond 64 bits");
  return negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

std::optional<double> parse_real(std::string_view text) {
  const std::optional<std::string> plain = without_underscores(stripped(text, Side::both));
  if (!plain || plain->empty() || plain->size() > 4000) return std::nullopt;
  std::string_view digits = *plain;
  if (digits[0] == '+' || digits[0] == '-') digits.remove_prefix(1);
  const std::string word = lower(digits);
  if (word == "inf" || word == "infinity" || word == "nan") return std::strtod(plain->c_str(), nullptr);
  const bool number = digits.find_first_not_of("0123456789.eE+-") == std::string_view::npos &&
                      digits.find_first_of("0123456789") != std::string_view::npos;
  if (!number || digits[0] == '+' || digits[0] == '-' || digits[0] == 'e' || digits[0] == 'E') return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain->c_str(), &end);
  if (end != plain->c_str() + plain->size()) return std::nullopt;
  return value;
}

const Builtin* find_text_filter(std::string_view name) {
  const auto* at =
      std::find_if(kTextFilters.begin(), kTextFilters.end(), [name](const Builtin& row) { return row.name == name; });
  return at == kTextFilters.end() ? nullptr : at;
}

}  // namespace qdelta::jinja
