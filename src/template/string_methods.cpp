// The methods of Python's strings.
#include <algorithm>
#include <array>
#include <cctype>

#include "template/builtins.h"
#include "template/interpreter.h"
#include "template/strings.h"
#include "template/text.h"

namespace qdelta::jinja {
namespace {

const std::string& self_of(const Call& call) { return call.self.text()->bytes; }

// Of a string that is marked as safe, Python would escape the arguments.
const std::string& plain_self(const Call& call) {
  if (call.self.text()->markup) {
    call.budget.unsupported(fmt::format("the method '{}' of the result of 'safe' or 'escape'", call.builtin.name));
  }
  return self_of(call);
}

template <std::string (*change)(std::string_view)>
Value method_case(Call& call) {
  call.budget.charge_bytes(self_of(call).size());
  return Value::text(change(self_of(call)), call.self.text()->markup);
}

template <Side side>
Value method_strip(Call& call) {
  call.budget.charge_bytes(self_of(call).size());
  const bool given = call.has(0) && !call.at(0).is_none();
  return Value::text(given ? stripped(self_of(call), side, call.text(0).bytes) : stripped(self_of(call), side),
                     call.self.text()->markup);
}

Value list_of(Call& call, const std::vector<std::string_view>& parts) {
  std::vector<Value> values;
  for (const std::string_view part : parts) {
    call.budget.charge_bytes(part.size());
    values.push_back(Value::text(part));
  }
  return Value::sequence(call.budget, std::move(values));
}

template <bool from_right>
Value method_split(Call& call) {
  const std::string& self = plain_self(call);
  call.budget.charge_bytes(self.size());
  call.budget.charge(self.size() / 4);
  const std::int64_t most = call.has(1) ? call.integer(1) : -1;
  if (!call.has(0) || call.at(0).is_none()) return list_of(call, split_at_spaces(self, most, from_right));
  if (call.text(0).bytes.empty()) call.budget.fail("split() at nothing");
  return list_of(call, split_at(self, call.text(0).bytes, most, from_right));
}

Value method_splitlines(Call& call) {
  call.budget.charge(plain_self(call).size() / 4);
  return list_of(call, split_lines(self_of(call), call.flag(0)));
}

template <bool at_end>
Value method_affix(Call& call) {
  const auto matches = [&call](const Value& affix) {
    if (affix.text() == nullptr) call.budget.fail("'{}' needs strings", call.builtin.name);
    return at_end ? self_of(call).ends_with(affix.text()->bytes) : self_of(call).starts_with(affix.text()->bytes);
  };
  const Value& given = call.at(0);
  if (given.is_undefined()) call.budget.fail("{} is undefined", given.undefined_name());
  const Sequence* several = given.list_or_tuple();
  if (several == nullptr) return {matches(given)};
  if (several->kind != SequenceKind::tuple) call.budget.fail("'{}' needs a string or a tuple", call.builtin.name);
  return {std::any_of(several->elements.begin(), several->elements.end(), matches)};
}

template <bool last>
std::int64_t position(Call& call) {
  const std::string& self = self_of(call);
  call.budget.charge(self.size() / 4);
  const std::size_t at = last ? self.rfind(call.text(0).bytes) : self.find(call.text(0).bytes);
  return at == std::string::npos ? -1 : count_characters(std::string_view(self).substr(0, at));
}

template <bool last>
Value method_find(Call& call) {
  return {position<last>(call)};
}

Value method_index(Call& call) {
  const std::int64_t at = position<false>(call);
  if (at < 0) call.budget.fail("index() of what is not in the string");
  return {at};
}

Value method_count(Call& call) {
  const std::string& what = call.text(0).bytes;
  call.budget.charge(self_of(call).size() / 4);
  if (what.empty()) return {call.self.text()->length + 1};
  std::int64_t count = 0;
  for (std::size_t at = self_of(call).find(what); at != std::string::npos;) {
    ++count;
    at = self_of(call).find(what, at + what.size());
  }
  return {count};
}

Value method_replace(Call& call) {
  const std::string& self = plain_self(call);
  const std::string& from = call.text(0).bytes;
  const std::string& to = call.text(1).bytes;
  // No more occurrences than fit; the result may be shorter than what is charged for.
  const std::size_t most = self.size() / std::max<std::size_t>(from.size(), 1) + 1;
  std::size_t count = 0;
  for (std::size_t at = 0; from.empty() ? count < most : (at = self.find(from, at)) != std::string::npos; ++count) {
    at += from.size();
  }
  call.budget.charge(self.size() / 4);
  call.budget.charge_bytes(self.size() + count * to.size());
  return Value::text(replaced(self, from, to, call.has(2) ? call.integer(2) : -1));
}

Value method_join(Call& call) {
  std::string result;
  bool first = true;
  const std::string& between = plain_self(call);
  Iterator iterator(call.budget, call.at(0));
  for (Value element; iterator.next(element); first = false) {
    if (element.text() == nullptr) call.budget.fail("join() needs strings, not {}", type_name(element));
    if (!first) result += between;
    result += element.text()->bytes;
    call.budget.charge((between.size() + element.text()->bytes.size()) / 16);
    if (result.size() > call.budget.limits().output) call.budget.charge_bytes(result.size());
  }
  return Value::text(result);
}

template <bool at_end>
Value method_remove(Call& call) {
  std::string_view self = plain_self(call);
  call.budget.charge_bytes(self.size());
  const std::string& affix = call.text(0).bytes;
  if (at_end && self.ends_with(affix)) self.remove_suffix(affix.size());
  if (!at_end && self.starts_with(affix)) self.remove_prefix(affix.size());
  return Value::text(self);
}

template <bool (*holds)(std::string_view)>
Value method_is(Call& call) {
  return {holds(self_of(call))};
}

Value method_isspace(Call& call) { return {!self_of(call).empty() && stripped(self_of(call), Side::left).empty()}; }

Value method_isdigit(Call& call) {
  if (!call.self.text()->ascii()) call.budget.unsupported("isdigit() of what is not ASCII");
  return {!self_of(call).empty() &&
          std::all_of(self_of(call).begin(), self_of(call).end(), [](char c) { return c >= '0' && c <= '9'; })};
}

// The value that a field of format() stands for: by number, by name, or the next one.
const Value& format_field(Call& call, std::string_view field, std::size_t& next, bool& numbered) {
  if (field.find_first_of(".[:!{") != std::string_view::npos) {
    call.budget.unsupported("format() with more than a name or a number in braces");
  }
  const bool number = !field.empty() && field.find_first_not_of("0123456789") == std::string_view::npos;
  if (field.empty() || number) {
    if (number) numbered = true;
    if (number && next > 0) call.budget.fail("format() with and without numbers");
    if (!number && numbered) call.budget.fail("format() with and without numbers");
    const std::size_t index = number ? static_cast<std::size_t>(*parse_integer(call.budget, field, 10)) : next++;
    if (index >= call.all.positional.size()) call.budget.fail("format() has too few arguments");
    return call.all.positional[index];
  }
  for (const auto& [name, value] : call.all.named) {
    if (name == field) return value;
  }
  call.budget.fail("format() has no argument '{}'", field.substr(0, 100));
}

Value method_format(Call& call) {
  const std::string_view text = plain_self(call);
  std::string result;
  std::size_t next = 0;
  bool numbered = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool twice = at + 1 < text.size() && text[at + 1] == c;
    if (c != '{' && c != '}') {
      result += c;
    } else if (twice) {
      result += c;
      ++at;
    } else {
      const std::size_t end = text.find('}', at);
      if (c == '}' || end == std::string_view::npos) call.budget.fail("format() of braces that are not closed");
      result += str(call.budget, format_field(call, text.substr(at + 1, end - at - 1), next, numbered));
      at = end;
    }
    if (result.size() > call.budget.limits().output) call.budget.charge_bytes(result.size());
  }
  call.budget.charge_bytes(result.size());
  return Value::text(result);
}

constexpr std::array<Builtin, 25> kStringMethods = {{{"capitalize", "", method_case<capitalized>},
                                                     {"count", "sub", method_count, false},
                                                     {"endswith", "suffix", method_affix<true>, false},
                                                     {"find", "sub", method_find<false>, false},
                                                     {"format", "*", method_format},
                                                     {"index", "sub", method_index, false},
                                                     {"isdigit", "", method_isdigit},
                                                     {"islower", "", method_is<is_all_lower>},
                                                     {"isspace", "", method_isspace},
                                                     {"isupper", "", method_is<is_all_upper>},
                                                     {"join", "iterable", method_join, false},
                                                     {"lower", "", method_case<lower>},
                                                     {"lstrip", "/ chars", method_strip<Side::left>, false},
                                                     {"removeprefix", "prefix", method_remove<false>, false},
                                                     {"removesuffix", "suffix", method_remove<true>, false},
                                                     {"replace", "old new / count", method_replace, false},
                                                     {"rfind", "sub", method_find<true>, false},
                                                     {"rsplit", "/ sep maxsplit", method_split<true>},
                                                     {"rstrip", "/ chars", method_strip<Side::right>, false},
                                                     {"split", "/ sep maxsplit", method_split<false>},
                                                     {"splitlines", "/ keepends", method_splitlines},
                                                     {"startswith", "prefix", method_affix<false>, false},
                                                     {"strip", "/ chars", method_strip<Side::both>, false},
                                                     {"title", "", method_case<titled>},
                                                     {"upper", "", method_case<upper>}}};

}  // namespace

const Builtin* find_string_method(std::string_view name) {
  const auto* at = std::find_if(kStringMethods.begin(), kStringMethods.end(),
                                [name](const Builtin& row) { return row.name == name; });
  return at == kStringMethods.end() ? nullptr : at;
}

}  // namespace qdelta::jinja
