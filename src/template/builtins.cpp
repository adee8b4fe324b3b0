// How arguments find their parameters; the global functions; the methods of dicts, lists and `loop`.
#include "template/builtins.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "io/untrusted_text.h"
#include "template/interpreter.h"
#include "template/text.h"

namespace qdelta::jinja {
namespace {

constexpr std::int64_t kLongestRange = 100'000;  // as in Jinja's sandbox

struct ParameterList {
  std::vector<std::string_view> names;
  std::size_t needed = 0;
};

ParameterList parameters_of(const Builtin& builtin) {
  ParameterList list;
  std::string_view rest = builtin.parameters;
  bool optional = false;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    if (word == "/") {
      optional = true;
      continue;
    }
    list.names.push_back(word);
    if (!optional) ++list.needed;
  }
  return list;
}

void bind(Call& call) {
  const ParameterList list = parameters_of(call.builtin);
  const auto refuse = [&call](std::string_view what) { call.budget.fail("'{}' {}", call.builtin.name, what); };
  if (call.all.positional.size() > list.names.size()) refuse("has too many arguments");
  call.values.resize(list.names.size());
  std::copy(call.all.positional.begin(), call.all.positional.end(), call.values.begin());
  for (auto& [name, value] : call.all.named) {
    const auto at = std::find(list.names.begin(), list.names.end(), name);
    if (!call.builtin.named || at == list.names.end()) refuse("has no argument " + shown(name));
    std::optional<Value>& slot = call.values[static_cast<std::size_t>(at - list.names.begin())];
    if (slot) refuse("has the argument " + shown(name) + " twice");
    slot = value;
  }
  for (std::size_t i = 0; i < list.needed; ++i) {
    if (!call.has(i)) refuse(fmt::format("needs the argument '{}'", list.names[i]));
  }
}

Value function_range(Call& call) {
  const auto& given = call.values;
  const bool only_stop = !given[1];
  Range range;
  range.start = only_stop ? 0 : call.integer(0);
  range.stop = call.integer(only_stop ? 0 : 1);
  range.step = given[2] ? call.integer(2) : 1;
  if (range.step == 0) call.budget.fail("range() with the step 0");
  if (range.length() > kLongestRange) call.budget.fail("range() of more than {} numbers", kLongestRange);
  return {range};
}

// The entries of a dict, or of pairs, then the named arguments.
std::vector<Dict::Entry> entries_from(Call& call) {
  std::vector<Dict::Entry> entries;
  if (call.all.positional.size() > 1) call.budget.fail("'{}' has too many arguments", call.builtin.name);
  if (!call.all.positional.empty()) {
    const Value& from = call.all.positional[0];
    if (from.dict() != nullptr) {
      entries = from.dict()->entries();
    } else {
      for (const Value& pair : elements_of(call.budget, from)) {
        const std::vector<Value> two = elements_of(call.budget, pair);
        if (two.size() != 2) call.budget.fail("'{}' needs pairs", call.builtin.name);
        entries.emplace_back(two[0], two[1]);
      }
    }
  }
  for (auto& [name, value] : call.all.named) entries.emplace_back(Value::text(name), value);
  return entries;
}

Value function_dict(Call& call) {
  Dict dict;
  for (auto& [key, value] : entries_from(call)) dict.insert(call.budget, std::move(key), std::move(value));
  return Value::dict(call.budget, std::move(dict));
}

Value function_namespace(Call& call) {
  Namespace* space = call.run.make_namespace();
  for (auto& [key, value] : entries_from(call)) {
    if (key.text() == nullptr) call.budget.unsupported("a namespace with a name that is no string");
    call.budget.charge(1 + space->attributes.size());
    space->set(key.text()->bytes, std::move(value));
  }
  return {space};
}

[[noreturn]] Value function_raise(Call& call) { throw Raised(str(call.budget, call.at(0))); }

Value function_strftime(Call& call) {
  constexpr std::size_t kLongest = 1000;
  const std::string& asked = call.text(0).bytes;
  if (asked.empty()) return Value::text("");
  if (asked.size() > kLongest || asked.find('\0') != std::string::npos)
    call.budget.fail("strftime_now() of that format");
  std::string format;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const char next = asked[i] == '%' && i + 1 < asked.size() ? asked[i + 1] : '\0';
    if (next == '\0') {
      format += asked[i];
      continue;
    }
    ++i;
    if (next == 'f') format += "000000";                                        // of microseconds; the clock has none
    if (next != 'f' && next != 'z' && next != 'Z') format.append({'%', next});  // Python's date has no zone
  }
  const auto seconds = static_cast<std::time_t>(call.run.now());
  std::tm local{};
  if (localtime_r(&seconds, &local) == nullptr) call.budget.fail("strftime_now() has no date");
  format += '.';  // so that an empty result can be told from one that does not fit
  std::array<char, 8 * kLongest> buffer{};
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &local);
  if (size == 0) call.budget.fail("strftime_now() makes too long a text");
  const std::string_view result(buffer.data(), size - 1);
  if (first_invalid_utf8(result)) call.budget.fail("strftime_now() makes text that is not UTF-8");
  return Value::text(result);
}

constexpr std::array<Builtin, 5> kFunctions = {{{"dict", "*", function_dict},
                                                {"namespace", "*", function_namespace},
                                                {"raise_exception", "message", function_raise},
                                                {"range", "start / stop step", function_range, false},
                                                {"strftime_now", "format", function_strftime}}};

Value method_get(Call& call) {
  const Value* found = call.self.dict()->find(call.budget, call.at(0));
  return found != nullptr ? *found : call.has(1) ? call.at(1) : Value(None{});
}

template <class Part>
Value view_of(Call& call, SequenceKind kind, const Part& part) {
  std::vector<Value> elements;
  for (const Dict::Entry& entry : call.self.dict()->entries()) elements.push_back(part(entry));
  return Value::sequence(call.budget, std::move(elements), kind);
}

Value method_keys(Call& call) {
  return view_of(call, SequenceKind::keys, [](const Dict::Entry& entry) { return entry.first; });
}
Value method_values(Call& call) {
  return view_of(call, SequenceKind::values, [](const Dict::Entry& entry) { return entry.second; });
}
Value method_items(Call& call) {
  return view_of(call, SequenceKind::items, [&call](const Dict::Entry& entry) {
    return Value::sequence(call.budget, {entry.first, entry.second}, SequenceKind::tuple);
  });
}

constexpr std::array<Builtin, 4> kDictMethods = {{{"get", "key / default", method_get, false},
                                                  {"items", "", method_items},
                                                  {"keys", "", method_keys},
                                                  {"values", "", method_values}}};

Value method_list_count(Call& call) {
  std::int64_t count = 0;
  for (const Value& element : call.self.sequence()->elements) {
    if (element.same_object(call.at(0)) || equal(call.budget, element, call.at(0))) ++count;
  }
  return {count};
}

Value method_list_index(Call& call) {
  const std::vector<Value>& elements = call.self.sequence()->elements;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (elements[i].same_object(call.at(0)) || equal(call.budget, elements[i], call.at(0))) {
      return {static_cast<std::int64_t>(i)};
    }
  }
  call.budget.fail("index() of what is not in the list");
}

constexpr std::array<Builtin, 2> kListMethods = {
    {{"count", "value", method_list_count, false}, {"index", "value", method_list_index, false}}};

Value method_cycle(Call& call) {
  const std::vector<Value>& values = call.all.positional;
  if (values.empty() || !call.all.named.empty()) call.budget.fail("loop.cycle() needs values");
  return values[static_cast<std::size_t>(call.self.loop()->index0) % values.size()];
}

Value method_changed(Call& call) {
  if (!call.all.named.empty()) call.budget.fail("loop.changed() takes no names");
  Value now = Value::sequence(call.budget, call.all.positional, SequenceKind::tuple);
  std::optional<Value>& last = call.self.loop()->changed;
  if (last && equal(call.budget, *last, now)) return {false};
  last = std::move(now);
  return {true};
}

constexpr std::array<Builtin, 2> kLoopMethods = {{{"changed", "*", method_changed}, {"cycle", "*", method_cycle}}};

template <std::size_t N>
const Builtin* in_table(const std::array<Builtin, N>& table, std::string_view name) {
  const auto* at = std::find_if(table.begin(), table.end(), [name](const Builtin& row) { return row.name == name; });
  return at == table.end() ? nullptr : at;
}

// What Python has besides: to be refused, not to be taken for a key that is missing.
constexpr std::string_view kOtherOfStrings =
    " casefold center encode expandtabs format_map isalnum isalpha isascii isdecimal isidentifier isnumeric "
    "isprintable "
    "istitle ljust maketrans partition rindex rjust rpartition swapcase translate zfill ";
constexpr std::string_view kOtherOfDicts = " clear copy fromkeys pop popitem setdefault update ";
constexpr std::string_view kOtherOfLists = " append clear copy extend insert pop remove reverse sort ";
constexpr std::string_view kOtherOfNumbers =
    " as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag is_integer numerator "
    "real "
    "to_bytes ";
constexpr std::string_view kOtherOfRanges = " count index start step stop ";
constexpr std::string_view kOtherOfViews = " isdisjoint mapping ";
constexpr std::string_view kOtherOfFunctions = " arguments caller catch_kwargs catch_varargs explicit_caller name ";
constexpr std::string_view kOtherOfIterators = " close gi_code gi_frame gi_running gi_yieldfrom send throw ";

std::string_view others_of(const Value& self) {
  if (self.text() != nullptr) return kOtherOfStrings;
  if (self.dict() != nullptr) return kOtherOfDicts;
  if (self.list_or_tuple() != nullptr) return kOtherOfLists;
  if (self.is_number()) return kOtherOfNumbers;
  if (self.range() != nullptr) return kOtherOfRanges;
  if (self.sequence() != nullptr) return kOtherOfViews;
  if (self.function() != nullptr) return kOtherOfFunctions;
  return self.generator() != nullptr ? kOtherOfIterators : "";
}

}  // namespace

std::int64_t Call::integer(std::size_t i) const {
  if (at(i).is_undefined()) budget.fail("{} is undefined", at(i).undefined_name());
  if (!at(i).is_integral()) budget.fail("'{}' needs an integer, not {}", builtin.name, type_name(at(i)));
  return at(i).integer();
}

const Text& Call::text(std::size_t i) const {
  if (at(i).is_undefined()) budget.fail("{} is undefined", at(i).undefined_name());
  if (at(i).text() == nullptr) budget.fail("'{}' needs a string, not {}", builtin.name, type_name(at(i)));
  return *at(i).text();
}

const Builtin* find_function(std::string_view name) { return in_table(kFunctions, name); }

const Builtin* find_filter(std::string_view name) {
  const Builtin* filter = find_text_filter(name);
  return filter != nullptr ? filter : find_sequence_filter(name);
}

const Builtin* find_method(Budget& budget, const Value& self, std::string_view name) {
  const Builtin* method = nullptr;
  if (self.text() != nullptr) method = find_string_method(name);
  if (self.dict() != nullptr) method = in_table(kDictMethods, name);
  if (self.list_or_tuple() != nullptr) method = in_table(kListMethods, name);
  if (self.loop() != nullptr) method = in_table(kLoopMethods, name);
  if (method != nullptr) return method;
  const std::string_view others = others_of(self);
  const std::size_t at =
      name.empty() || name.find(' ') != std::string_view::npos ? std::string_view::npos : others.find(name);
  if (at != std::string_view::npos && others[at - 1] == ' ' && others[at + name.size()] == ' ') {
    budget.unsupported(fmt::format("the method or attribute '{}' of {}", name, type_name(self)));
  }
  return nullptr;
}

Value call_builtin(Interpreter& run, const Builtin& builtin, const Value& self, Arguments arguments) {
  Budget& budget = run.budget();
  budget.charge(1);
  Call call{run, budget, builtin, self, arguments, {}};
  if (builtin.parameters != "*") bind(call);
  return builtin.run(call);
}

Value attribute_at(Interpreter& run, const Value& item, const Value& path) {
  if (path.is_none()) return item;
  if (path.text() == nullptr) return run.item(item, path);
  Value value = item;
  std::string_view rest = path.text()->bytes;
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    std::optional<std::int64_t> index;
    if (number) index = parse_integer(run.budget(), part, 10);
    value = run.item(value, index ? Value(*index) : Value::text(part));
    if (dot == std::string_view::npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

}  // namespace qdelta::jinja
