// Filters of lists, dicts and everything else that can be gone through.
#include <algorithm>
#include <array>

#include "template/builtins.h"
#include "template/interpreter.h"
#include "template/operators.h"
#include "template/strings.h"
#include "template/text.h"

namespace qdelta::jinja {
namespace {

Value ignoring_case(Call& call, const Value& value) {
  if (value.text() == nullptr) return value;
  call.budget.charge_bytes(value.text()->bytes.size());
  return Value::text(lower(value.text()->bytes));
}

// The key that an element is sorted or compared by.
Value key_of(Call& call, const Value& element, const Value& attribute, bool case_sensitive) {
  const Value key = attribute_at(call.run, element, attribute);
  return case_sensitive ? key : ignoring_case(call, key);
}

Value optional_at(const Call& call, std::size_t i) { return call.has(i) ? call.at(i) : Value(None{}); }

Value filter_length(Call& call) {
  const std::int64_t length = length_of(call.self);
  if (length < 0) call.budget.fail("{} has no length", type_name(call.self));
  return {length};
}

Value filter_default(Call& call) {
  const bool replace = call.self.is_undefined() || (call.flag(1) && !truth(call.self));
  return !replace ? call.self : call.has(0) ? call.at(0) : Value::text("");
}

Value filter_list(Call& call) { return Value::sequence(call.budget, elements_of(call.budget, call.self)); }

Value filter_first(Call& call) {
  Iterator iterator(call.budget, call.self);
  Value first;
  return iterator.next(first) ? first : Value::undefined("the first element of nothing");
}

bool can_be_reversed(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.sequence() != nullptr || value.dict() != nullptr ||
         value.range() != nullptr;
}

Value filter_last(Call& call) {
  if (!can_be_reversed(call.self)) call.budget.fail("{} has no last element", type_name(call.self));
  if (length_of(call.self) == 0) return Value::undefined("the last element of nothing");
  if (call.self.dict() != nullptr) return call.self.dict()->entries().back().first;
  return element_at(call.budget, call.self, -1);
}

Value filter_reverse(Call& call) {
  if (call.self.text() != nullptr) {
    return slice(call.budget, call.self, Value(None{}), Value(None{}), Value(std::int64_t{-1}));
  }
  std::vector<Value> elements = elements_of(call.budget, call.self);
  std::reverse(elements.begin(), elements.end());
  return can_be_reversed(call.self) ? Value::generator(call.budget, std::move(elements))
                                    : Value::sequence(call.budget, std::move(elements));
}

Value filter_join(Call& call) {
  const std::string between = call.has(0) ? str(call.budget, call.at(0)) : "";
  const Value attribute = optional_at(call, 1);
  std::string result;
  bool first = true;
  Iterator iterator(call.budget, call.self);
  for (Value element; iterator.next(element); first = false) {
    if (!first) result += between;
    result += str(call.budget, attribute_at(call.run, element, attribute));
    call.budget.charge(between.size() / 16);
    if (result.size() > call.budget.limits().output) call.budget.charge_bytes(result.size());
  }
  return Value::text(result);
}

Value filter_items(Call& call) {
  std::vector<Value> pairs;
  if (call.self.dict() == nullptr && !call.self.is_undefined()) {
    call.budget.fail("'items' needs a dict, not {}", type_name(call.self));
  }
  if (call.self.dict() != nullptr) {
    for (const auto& [key, value] : call.self.dict()->entries()) {
      pairs.push_back(Value::sequence(call.budget, {key, value}, SequenceKind::tuple));
    }
  }
  return Value::generator(call.budget, std::move(pairs));
}

struct Keyed {
  std::vector<Value> keys;
  Value value;
};

// Stable in both directions, as Python's sorted().
std::vector<Value> sorted(Budget& budget, std::vector<Keyed> all, bool descending) {
  const auto before = [&budget](const Keyed& a, const Keyed& b) {
    for (std::size_t i = 0; i < a.keys.size(); ++i) {
      if (a.keys.size() > 1 && equal(budget, a.keys[i], b.keys[i])) continue;
      return compare(budget, Operator::lt, a.keys[i], b.keys[i]);
    }
    return false;
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Keyed& a, const Keyed& b) { return descending ? before(b, a) : before(a, b); });
  std::vector<Value> values;
  for (Keyed& one : all) values.push_back(std::move(one.value));
  return values;
}

Value filter_sort(Call& call) {
  std::vector<Value> attributes{optional_at(call, 2)};
  if (attributes[0].text() != nullptr) {
    const Value names = attributes[0];
    attributes.clear();
    for (const std::string_view name : split_at(names.text()->bytes, ",", -1, false)) {
      attributes.push_back(Value::text(name));
    }
  }
  std::vector<Keyed> all;
  for (const Value& element : elements_of(call.budget, call.self)) {
    Keyed keyed{{}, element};
    for (const Value& attribute : attributes) {
      Value key = key_of(call, element, attribute, call.flag(1));
      if (key.is_undefined()) call.budget.fail("{} is undefined", key.undefined_name());
      keyed.keys.push_back(std::move(key));
    }
    all.push_back(std::move(keyed));
  }
  return Value::sequence(call.budget, sorted(call.budget, std::move(all), call.flag(0)));
}

Value filter_dictsort(Call& call) {
  if (call.self.is_undefined()) call.budget.fail("{} is undefined", call.self.undefined_name());
  if (call.self.dict() == nullptr) call.budget.fail("'dictsort' needs a dict, not {}", type_name(call.self));
  const std::string by = call.has(1) ? call.text(1).bytes : "key";
  if (by != "key" && by != "value") call.budget.fail("'dictsort' sorts by key or value");
  std::vector<Keyed> all;
  for (const auto& [key, value] : call.self.dict()->entries()) {
    const Value& chosen = by == "key" ? key : value;
    all.push_back({{call.flag(0) ? chosen : ignoring_case(call, chosen)},
                   Value::sequence(call.budget, {key, value}, SequenceKind::tuple)});
  }
  return Value::sequence(call.budget, sorted(call.budget, std::move(all), call.flag(2)));
}

template <Operator better>
Value filter_extreme(Call& call) {
  Value best, best_key;
  bool any = false;
  Iterator iterator(call.budget, call.self);
  for (Value element; iterator.next(element); any = true) {
    Value key = key_of(call, element, optional_at(call, 1), call.flag(0));
    if (any && !compare(call.budget, better, key, best_key)) continue;
    best = element;
    best_key = std::move(key);
  }
  return any ? best : Value::undefined("the smallest or largest of nothing");
}

Value filter_sum(Call& call) {
  Value sum = call.has(1) ? call.at(1) : Value(std::int64_t{0});
  if (sum.text() != nullptr) call.budget.fail("'sum' is not for strings");
  Iterator iterator(call.budget, call.self);
  for (Value element; iterator.next(element);) {
    sum = binary(call.budget, Operator::add, sum, attribute_at(call.run, element, optional_at(call, 0)));
  }
  return sum;
}

Value filter_unique(Call& call) {
  Dict seen;
  std::vector<Value> unique;
  Iterator iterator(call.budget, call.self);
  for (Value element; iterator.next(element);) {
    Value key = key_of(call, element, optional_at(call, 1), call.flag(0));
    if (seen.find(call.budget, key) != nullptr) continue;
    seen.insert(call.budget, std::move(key), Value(None{}));
    unique.push_back(element);
  }
  return Value::generator(call.budget, std::move(unique));
}

Value filter_batch(Call& call) {
  const std::int64_t size = call.integer(0);
  std::vector<Value> batches, batch;
  Iterator iterator(call.budget, call.self);
  for (Value element; iterator.next(element);) {
    if (static_cast<std::int64_t>(batch.size()) == size) {
      batches.push_back(Value::sequence(call.budget, std::exchange(batch, {})));
    }
    batch.push_back(element);
  }
  const auto filled = static_cast<std::int64_t>(batch.size());
  if (filled > 0) {
    if (call.has(1) && !call.at(1).is_none() && filled < size) {
      call.budget.charge(static_cast<std::size_t>(size - filled));
      batch.resize(static_cast<std::size_t>(size), call.at(1));
    }
    batches.push_back(Value::sequence(call.budget, std::move(batch)));
  }
  return Value::generator(call.budget, std::move(batches));
}

Value filter_map(Call& call) {
  std::vector<Value> results;
  if (!truth(call.self)) return Value::generator(call.budget, {});
  std::optional<Value> attribute, otherwise;
  const Builtin* filter = nullptr;
  Arguments& all = call.all;
  if (all.positional.empty()) {
    for (auto& [name, value] : all.named) {
      if (name != "attribute" && name != "default") call.budget.fail("'map' has no argument '{}'", name);
      (name == "attribute" ? attribute : otherwise) = value;
    }
    if (!attribute) call.budget.fail("'map' needs a filter or an attribute");
    if (otherwise && !otherwise->is_none() && attribute->text() != nullptr &&
        attribute->text()->bytes.find('.') != std::string::npos) {
      call.budget.unsupported("'map' with a path of attributes and a default");
    }
  } else {
    const std::string name = all.positional[0].text() != nullptr ? all.positional[0].text()->bytes : "";
    filter = find_filter(name);
    if (filter == nullptr) call.budget.unsupported("the filter '" + name + "'");
    all.positional.erase(all.positional.begin());
  }
  Iterator iterator(call.budget, call.self);
  for (Value element; iterator.next(element);) {
    if (filter != nullptr) {
      results.push_back(call_builtin(call.run, *filter, element, all));
      continue;
    }
    Value found = attribute_at(call.run, element, *attribute);
    if (found.is_undefined() && otherwise && !otherwise->is_none()) found = *otherwise;
    results.push_back(std::move(found));
  }
  return Value::generator(call.budget, std::move(results));
}

// With `attributes`, the first argument names what is tested of an element.
template <bool wanted, bool attributes>
Value filter_select(Call& call) {
  std::vector<Value> selected;
  if (!truth(call.self)) return Value::generator(call.budget, {});
  std::vector<Value>& given = call.all.positional;
  Value attribute{None{}};
  if (attributes) {
    if (given.empty()) call.budget.fail("'{}' needs an attribute", call.builtin.name);
    attribute = given[0];
    given.erase(given.begin());
  }
  const Builtin* test = nullptr;
  if (!given.empty()) {
    const std::string name = given[0].text() != nullptr ? given[0].text()->bytes : "";
    test = find_test(name);
    if (test == nullptr) call.budget.unsupported("the test '" + name + "'");
    given.erase(given.begin());
  }
  Iterator iterator(call.budget, call.self);
  for (Value element; iterator.next(element);) {
    const Value tested = attribute_at(call.run, element, attribute);
    const Value result = test != nullptr ? call_builtin(call.run, *test, tested, call.all) : tested;
    if (truth(result) == wanted) selected.push_back(element);
  }
  return Value::generator(call.budget, std::move(selected));
}

constexpr std::array<Builtin, 22> kSequenceFilters = {
    {{"batch", "linecount / fill_with", filter_batch},
     {"count", "", filter_length},
     {"d", "/ default_value boolean", filter_default},
     {"default", "/ default_value boolean", filter_default},
     {"dictsort", "/ case_sensitive by reverse", filter_dictsort},
     {"first", "", filter_first},
     {"items", "", filter_items},
     {"join", "/ d attribute", filter_join},
     {"last", "", filter_last},
     {"length", "", filter_length},
     {"list", "", filter_list},
     {"map", "*", filter_map},
     {"max", "/ case_sensitive attribute", filter_extreme<Operator::gt>},
     {"min", "/ case_sensitive attribute", filter_extreme<Operator::lt>},
     {"reject", "*", filter_select<false, false>},
     {"rejectattr", "*", filter_select<false, true>},
     {"reverse", "", filter_reverse},
     {"select", "*", filter_select<true, false>},
     {"selectattr", "*", filter_select<true, true>},
     {"sort", "/ reverse case_sensitive attribute", filter_sort},
     {"sum", "/ attribute start", filter_sum},
     {"unique", "/ case_sensitive attribute", filter_unique}}};

}  // namespace

const Builtin* find_sequence_filter(std::string_view name) {
  const auto* at = std::find_if(kSequenceFilters.begin(), kSequenceFilters.end(),
                                [name](const Builtin& row) { return row.name == name; });
  return at == kSequenceFilters.end() ? nullptr : at;
}

}  // namespace qdelta::jinja
