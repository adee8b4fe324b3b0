#include "template/value.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "data/unicode.h"
#include "io/untrusted_text.h"
#include "template/strings.h"

namespace qdelta::jinja {
namespace {

int depth_above(Budget& budget, const std::vector<Value>& elements) {
  int depth = 0;
  for (const Value& element : elements) depth = std::max(depth, element.depth());
  if (depth >= kDeepestValue) budget.fail("makes a value of more than {} levels", kDeepestValue);
  return depth + 1;
}

Value from_json_object(Budget& budget, const nlohmann::ordered_json& json, int depth) {
  Dict dict;
  for (const auto& [key, value] : json.items()) {
    if (first_invalid_utf8(key)) budget.fail("the variables hold a key that is not UTF-8: {}", shown(key));
    dict.insert(budget, Value::text(key), Value::from_json(budget, value, depth + 1));
  }
  return Value::dict(budget, std::move(dict));
}

}  // namespace

std::int64_t Range::length() const {
  if (step > 0 ? start >= stop : start <= stop) return 0;
  const auto bits = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t distance = step > 0 ? bits(stop) - bits(start) : bits(start) - bits(stop);
  const std::uint64_t count = (distance - 1) / (step > 0 ? bits(step) : 0 - bits(step)) + 1;
  return static_cast<std::int64_t>(std::min(count, bits(std::numeric_limits<std::int64_t>::max())));
}

Value Value::undefined(std::string what) {
  Value value;
  value.data_ = std::make_shared<const Undefined>(Undefined{std::move(what)});
  return value;
}

Value Value::text(std::string_view bytes, bool markup) {
  Value value;
  value.data_ = std::make_shared<const Text>(Text{std::string(bytes), count_characters(bytes), markup});
  return value;
}

Value Value::sequence(Budget& budget, std::vector<Value> elements, SequenceKind kind) {
  budget.charge(1 + elements.size());
  const int depth = depth_above(budget, elements);
  Value value;
  value.data_ = std::make_shared<const Sequence>(Sequence{std::move(elements), kind, depth});
  return value;
}

Value Value::generator(Budget& budget, std::vector<Value> elements) {
  budget.charge(1 + elements.size());
  const int depth = depth_above(budget, elements);
  Value value;
  value.data_ = std::make_shared<Generator>(Generator{std::move(elements), 0, depth});
  return value;
}

Value Value::dict(Budget& budget, Dict dict) {
  if (dict.depth() > kDeepestValue) budget.fail("makes a value of more than {} levels", kDeepestValue);
  budget.charge(1 + dict.entries().size());
  return {std::make_shared<const Dict>(std::move(dict))};
}

Value Value::from_json(Budget& budget, const nlohmann::ordered_json& json, int depth) {
  if (depth > kDeepestValue) budget.fail("the variables are nested more than {} levels deep", kDeepestValue);
  budget.charge(1);
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return {None{}};
    case nlohmann::ordered_json::value_t::boolean:
      return {json.get<bool>()};
    case nlohmann::ordered_json::value_t::number_integer:
      return {json.get<std::int64_t>()};
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        budget.fail("the variables hold the integer {}, beyond 64 bits with a sign", json.get<std::uint64_t>());
      return {json.get<std::int64_t>()};
    case nlohmann::ordered_json::value_t::number_float:
      return {json.get<double>()};
    case nlohmann::ordered_json::value_t::string: {
      const auto& bytes = json.get_ref<const std::string&>();
      if (first_invalid_utf8(bytes)) budget.fail("the variables hold text that is not UTF-8: {}", shown(bytes));
      return text(bytes);
    }
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> elements;
      for (const auto& element : json) elements.push_back(from_json(budget, element, depth + 1));
      return sequence(budget, std::move(elements));
    }
    case nlohmann::ordered_json::value_t::object:
      return from_json_object(budget, json, depth);
    default:
      budget.fail("the variables hold binary data");
  }
}

const Text* Value::text() const {
  const auto* pointer = std::get_if<std::shared_ptr<const Text>>(&data_);
  return pointer == nullptr ? nullptr : pointer->get();
}
const Sequence* Value::sequence() const {
  const auto* pointer = std::get_if<std::shared_ptr<const Sequence>>(&data_);
  return pointer == nullptr ? nullptr : pointer->get();
}
const Sequence* Value::list_or_tuple() const {
  const Sequence* all = sequence();
  return all != nullptr && (all->kind == SequenceKind::list || all->kind == SequenceKind::tuple) ? all : nullptr;
}
const Dict* Value::dict() const {
  const auto* pointer = std::get_if<std::shared_ptr<const Dict>>(&data_);
  return pointer == nullptr ? nullptr : pointer->get();
}
const std::shared_ptr<Generator>* Value::generator() const { return std::get_if<std::shared_ptr<Generator>>(&data_); }
Namespace* Value::space() const {
  const auto* pointer = std::get_if<Namespace*>(&data_);
  return pointer == nullptr ? nullptr : *pointer;
}
LoopState* Value::loop() const {
  const auto* pointer = std::get_if<LoopState*>(&data_);
  return pointer == nullptr ? nullptr : *pointer;
}

std::int64_t Value::integer() const {
  if (const auto* boolean = std::get_if<bool>(&data_)) return *boolean ? 1 : 0;
  return std::get<std::int64_t>(data_);
}
double Value::real() const {
  if (const auto* real = std::get_if<double>(&data_)) return *real;
  return static_cast<double>(integer());
}

std::string Value::undefined_name() const {
  const auto* pointer = std::get_if<std::shared_ptr<const Undefined>>(&data_);
  return pointer == nullptr || *pointer == nullptr ? "a value" : (*pointer)->what;
}

int Value::depth() const {
  if (const Sequence* all = sequence()) return all->depth;
  if (const Dict* all = dict()) return all->depth();
  if (generator() != nullptr) return (*generator())->depth;
  if (function() != nullptr && function()->self != nullptr) return function()->self->depth() + 1;
  return 0;
}

bool Value::same_object(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_undefined()) return std::get<0>(data_) == std::get<0>(other.data_);
  if (is<None>()) return true;
  if (is<bool>() || is<std::int64_t>()) return integer() == other.integer();  // as CPython does with small ones
  if (is<double>() || range() != nullptr) return false;
  if (text() != nullptr) return text() == other.text();
  if (sequence() != nullptr) return sequence() == other.sequence();
  if (dict() != nullptr) return dict() == other.dict();
  if (generator() != nullptr) return generator()->get() == other.generator()->get();
  if (space() != nullptr) return space() == other.space();
  if (loop() != nullptr) return loop() == other.loop();
  const Function& a = *function();
  const Function& b = *other.function();
  return a.builtin == b.builtin && a.macro == b.macro && a.self == nullptr && b.self == nullptr;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& [key, known] : attributes) {
    if (key != name) continue;
    known = std::move(value);
    return;
  }
  attributes.emplace_back(name, std::move(value));
}

bool Iterator::possible(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.sequence() != nullptr || value.dict() != nullptr ||
         value.range() != nullptr || value.generator() != nullptr || value.loop() != nullptr;
}

Iterator::Iterator(Budget& budget, Value value) : budget_(&budget), value_(std::move(value)) {
  if (value_.loop() != nullptr) budget.unsupported("a loop over the variable loop");
  if (!possible(value_)) budget.fail("{} cannot be iterated over", type_name(value_));
}

bool Iterator::next(Value& element) {
  budget_->charge(1);
  if (const Text* text = value_.text()) {
    if (at_ >= text->bytes.size()) return false;
    const std::size_t length = unicode::character_at(text->bytes.data() + at_).length;
    element = Value::text(std::string_view(text->bytes).substr(at_, length), text->markup);
    at_ += length;
    return true;
  }
  if (const Sequence* all = value_.sequence()) {
    if (at_ >= all->elements.size()) return false;
    element = all->elements[at_++];
    return true;
  }
  if (const Dict* dict = value_.dict()) {
    if (at_ >= dict->entries().size()) return false;
    element = dict->entries()[at_++].first;
    return true;
  }
  if (const Range* range = value_.range()) {
    if (static_cast<std::int64_t>(at_) >= range->length()) return false;
    element = Value(range->at(static_cast<std::int64_t>(at_++)));
    return true;
  }
  if (const auto* generator = value_.generator()) {
    if ((*generator)->next >= (*generator)->elements.size()) return false;
    element = (*generator)->elements[(*generator)->next++];
    return true;
  }
  return false;  // undefined
}

std::vector<Value> elements_of(Budget& budget, const Value& value) {
  std::vector<Value> elements;
  Iterator iterator(budget, value);
  for (Value element; iterator.next(element);) elements.push_back(element);
  return elements;
}

std::int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.text() != nullptr) return value.text()->length;
  if (value.sequence() != nullptr) return static_cast<std::int64_t>(value.sequence()->elements.size());
  if (value.dict() != nullptr) return static_cast<std::int64_t>(value.dict()->entries().size());
  if (value.range() != nullptr) return value.range()->length();
  return -1;
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.real() != 0;  // NaN is true
  return length_of(value) != 0;
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "an undefined value";
  if (value.is_none()) return "None";
  if (value.is<bool>()) return "a boolean";
  if (value.is<std::int64_t>()) return "an integer";
  if (value.is<double>()) return "a float";
  if (value.text() != nullptr) return "a string";
  if (value.dict() != nullptr) return "a dict";
  if (value.range() != nullptr) return "a range";
  if (value.generator() != nullptr) return "an iterator";
  if (value.space() != nullptr) return "a namespace";
  if (value.loop() != nullptr) return "the variable loop";
  if (value.function() != nullptr) return "a function";
  switch (value.sequence()->kind) {
    case SequenceKind::list:
      return "a list";
    case SequenceKind::tuple:
      return "a tuple";
    default:
      return "a view of a dict";
  }
}

}  // namespace qdelta::jinja
