// What stands after `is`.
#include <algorithm>
#include <array>

#include "template/builtins.h"
#include "template/interpreter.h"
#include "template/operators.h"
#include "template/strings.h"
#include "template/text.h"

namespace qdelta::jinja {
namespace {

template <Operator op>
Value test_compare(Call& call) {
  return {compare(call.budget, op, call.self, call.at(0))};
}

bool remainder_is(Call& call, const Value& divisor, std::int64_t expected) {
  return equal(call.budget, binary(call.budget, Operator::modulo, call.self, divisor), Value(expected));
}

Value test_odd(Call& call) { return {remainder_is(call, Value(std::int64_t{2}), 1)}; }
Value test_even(Call& call) { return {remainder_is(call, Value(std::int64_t{2}), 0)}; }
Value test_divisible(Call& call) { return {remainder_is(call, call.at(0), 0)}; }
Value test_defined(Call& call) { return {!call.self.is_undefined()}; }
Value test_undefined(Call& call) { return {call.self.is_undefined()}; }
Value test_none(Call& call) { return {call.self.is_none()}; }
Value test_boolean(Call& call) { return {call.self.is<bool>()}; }
Value test_true(Call& call) { return {call.self.is<bool>() && call.self.integer() == 1}; }
Value test_false(Call& call) { return {call.self.is<bool>() && call.self.integer() == 0}; }
Value test_integer(Call& call) { return {call.self.is<std::int64_t>()}; }
Value test_float(Call& call) { return {call.self.is<double>()}; }
Value test_number(Call& call) { return {call.self.is_number()}; }
Value test_string(Call& call) { return {call.self.text() != nullptr}; }
Value test_mapping(Call& call) { return {call.self.dict() != nullptr}; }
Value test_iterable(Call& call) { return {Iterator::possible(call.self)}; }
Value test_lower(Call& call) { return {is_all_lower(str(call.budget, call.self))}; }
Value test_upper(Call& call) { return {is_all_upper(str(call.budget, call.self))}; }

// Python looks for the methods __len__ and __getitem__, which undefined values have.
Value test_sequence(Call& call) {
  const Value& self = call.self;
  return {self.is_undefined() || self.text() != nullptr || self.list_or_tuple() != nullptr || self.dict() != nullptr ||
          self.range() != nullptr};
}

Value test_callable(Call& call) {
  return {call.self.is_undefined() || call.self.function() != nullptr || call.self.loop() != nullptr};
}

// Whether two numbers or strings are the same object is up to Python's memory.
Value test_same(Call& call) {
  const bool unknown = call.self.is<double>() || call.self.text() != nullptr || call.self.is<std::int64_t>();
  if (unknown && equal(call.budget, call.self, call.at(0))) {
    call.budget.unsupported("the test 'sameas' of equal numbers or strings");
  }
  return {call.self.same_object(call.at(0))};
}

constexpr std::array<Builtin, 36> kTests = {{{"!=", "other", test_compare<Operator::ne>},
                                             {"<", "other", test_compare<Operator::lt>},
                                             {"<=", "other", test_compare<Operator::le>},
                                             {"==", "other", test_compare<Operator::eq>},
                                             {">", "other", test_compare<Operator::gt>},
                                             {">=", "other", test_compare<Operator::ge>},
                                             {"boolean", "", test_boolean},
                                             {"callable", "", test_callable},
                                             {"defined", "", test_defined},
                                             {"divisibleby", "num", test_divisible},
                                             {"eq", "other", test_compare<Operator::eq>},
                                             {"equalto", "other", test_compare<Operator::eq>},
                                             {"even", "", test_even},
                                             {"false", "", test_false},
                                             {"float", "", test_float},
                                             {"ge", "other", test_compare<Operator::ge>},
                                             {"greaterthan", "other", test_compare<Operator::gt>},
                                             {"gt", "other", test_compare<Operator::gt>},
                                             {"in", "seq", test_compare<Operator::in>},
                                             {"integer", "", test_integer},
                                             {"iterable", "", test_iterable},
                                             {"le", "other", test_compare<Operator::le>},
                                             {"lessthan", "other", test_compare<Operator::lt>},
                                             {"lower", "", test_lower},
                                             {"lt", "other", test_compare<Operator::lt>},
                                             {"mapping", "", test_mapping},
                                             {"ne", "other", test_compare<Operator::ne>},
                                             {"none", "", test_none},
                                             {"number", "", test_number},
                                             {"odd", "", test_odd},
                                             {"sameas", "other", test_same},
                                             {"sequence", "", test_sequence},
                                             {"string", "", test_string},
                                             {"true", "", test_true},
                                             {"undefined", "", test_undefined},
                                             {"upper", "", test_upper}}};

}  // namespace

const Builtin* find_test(std::string_view name) {
  const auto* at = std::find_if(kTests.begin(), kTests.end(), [name](const Builtin& row) { return row.name == name; });
  return at == kTests.end() ? nullptr : at;
}

}  // namespace qdelta::jinja
