#include <algorithm>

#include "io/untrusted_text.h"
#include "template/interpreter.h"
#include "template/operators.h"
#include "template/text.h"

namespace qdelta::jinja {

Value Interpreter::lookup(const std::string& name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    budget_.charge(1 + scope->variables.size() / 8);
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return value;
    }
  }
  if (const Builtin* builtin = find_function(name)) {
    Function function;
    function.builtin = builtin;
    return {function};
  }
  if (name == "cycler" || name == "joiner" || name == "lipsum" || name == "self") {
    budget_.unsupported("the function '" + name + "'");
  }
  return Value::undefined("'" + name + "'");
}

Value Interpreter::evaluate(const Expression& expression) {
  const Budget::Level level(budget_);
  budget_.charge(1);
  budget_.line = expression.line;
  const auto operand = [&](std::size_t i) { return evaluate(*expression.operands[i]); };
  switch (expression.kind) {
    case ExpressionKind::constant:
      return expression.constant;
    case ExpressionKind::name:
      return lookup(expression.text);
    case ExpressionKind::namespace_attribute:
      break;
    case ExpressionKind::list:
      return Value::sequence(budget_, evaluate_all(expression));
    case ExpressionKind::tuple:
      return Value::sequence(budget_, evaluate_all(expression), SequenceKind::tuple);
    case ExpressionKind::dict:
      return evaluate_dict(expression);
    case ExpressionKind::attribute: {
      const Value value = operand(0);
      budget_.line = expression.line;
      return attribute(value, expression.text);
    }
    case ExpressionKind::item: {
      const Value value = operand(0);
      return item(value, operand(1));
    }
    case ExpressionKind::slice:
      return evaluate_slice(expression);
    case ExpressionKind::call: {
      const Value callee = operand(0);
      Arguments arguments = evaluate_arguments(expression);
      budget_.line = expression.line;
      return call(callee, std::move(arguments));
    }
    case ExpressionKind::filter:
    case ExpressionKind::test:
      return evaluate_filter_or_test(expression);
    case ExpressionKind::unary:
      return unary(budget_, expression.operators[0], operand(0));
    case ExpressionKind::binary: {
      const Value left = operand(0);
      const Value right = operand(1);
      budget_.line = expression.line;
      return binary(budget_, expression.operators[0], left, right);
    }
    case ExpressionKind::logical_and: {
      Value left = operand(0);
      return truth(left) ? operand(1) : left;
    }
    case ExpressionKind::logical_or: {
      Value left = operand(0);
      return truth(left) ? left : operand(1);
    }
    case ExpressionKind::compare:
      return evaluate_compare(expression);
    case ExpressionKind::concat:
      return evaluate_concat(expression);
    case ExpressionKind::conditional:
      if (truth(operand(0))) return operand(1);
      if (expression.operands[2] != nullptr) return operand(2);
      return Value::undefined("the value of an 'if' without 'else'");
  }
  return {};
}

std::vector<Value> Interpreter::evaluate_all(const Expression& expression) {
  std::vector<Value> values;
  for (const ExpressionPtr& one : expression.operands) values.push_back(evaluate(*one));
  return values;
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  Dict dict;
  for (std::size_t i = 0; i < expression.operands.size(); i += 2) {
    Value key = evaluate(*expression.operands[i]);
    dict.insert(budget_, std::move(key), evaluate(*expression.operands[i + 1]));
  }
  return Value::dict(budget_, std::move(dict));
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  const Value value = evaluate(*expression.operands[0]);
  const auto bound = [&](std::size_t i) {
    return expression.operands[i] != nullptr ? evaluate(*expression.operands[i]) : Value(None{});
  };
  const Value start = bound(1);
  const Value stop = bound(2);
  const Value step = bound(3);
  budget_.line = expression.line;
  return slice(budget_, value, start, stop, step);
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.operands[i + 1]);
    budget_.line = expression.line;
    if (!compare(budget_, expression.operators[i], left, right)) return {false};
    left = std::move(right);
  }
  return {true};
}

Value Interpreter::evaluate_concat(const Expression& expression) {
  std::vector<Value> values = evaluate_all(expression);
  budget_.line = expression.line;
  std::string text;
  for (const Value& value : values) {
    text += str(budget_, value);
    budget_.charge_bytes(text.size());
  }
  return Value::text(text);
}

Value Interpreter::evaluate_filter_or_test(const Expression& expression) {
  const Value self = expression.operands[0] != nullptr ? evaluate(*expression.operands[0]) : block_text_.back();
  Arguments arguments = evaluate_arguments(expression);
  budget_.line = expression.line;
  return call_builtin(*this, *expression.builtin, self, std::move(arguments));
}

Arguments Interpreter::evaluate_arguments(const Expression& call) {
  Arguments arguments;
  for (std::size_t i = 1; i < call.operands.size(); ++i) arguments.positional.push_back(evaluate(*call.operands[i]));
  for (const auto& [name, value] : call.keywords) arguments.named.emplace_back(name, evaluate(*value));
  if (call.rest != nullptr) {
    for (Value& value : elements_of(budget_, evaluate(*call.rest))) arguments.positional.push_back(std::move(value));
  }
  if (call.keyword_rest == nullptr) return arguments;
  const Value rest = evaluate(*call.keyword_rest);
  if (rest.dict() == nullptr) budget_.fail("'**' needs a dict, not {}", type_name(rest));
  for (const auto& [key, value] : rest.dict()->entries()) {
    if (key.text() == nullptr) budget_.fail("'**' needs a dict whose keys are strings");
    const auto same = [&key = key](const auto& argument) { return argument.first == key.text()->bytes; };
    budget_.charge(arguments.named.size());
    if (std::any_of(arguments.named.begin(), arguments.named.end(), same)) {
      budget_.fail("the argument {} twice", shown(key.text()->bytes));
    }
    arguments.named.emplace_back(key.text()->bytes, value);
  }
  return arguments;
}

std::optional<Value> Interpreter::bound_method(const Value& self, std::string_view name) {
  const Builtin* method = find_method(budget_, self, name);
  if (method == nullptr) return std::nullopt;
  if (self.depth() >= kDeepestValue) budget_.fail("makes a value of more than {} levels", kDeepestValue);
  Function function;
  function.builtin = method;
  function.self = std::make_shared<const Value>(self);
  return Value(function);
}

Value Interpreter::loop_attribute(LoopState& loop, const std::string& name) {
  const auto integer = [](std::int64_t value) { return Value(value); };
  if (name == "index") return integer(loop.index0 + 1);
  if (name == "index0") return integer(loop.index0);
  if (name == "first") return {loop.index0 == 0};
  if (name == "last") return {!loop.look_ahead()};
  if (name == "length") return integer(loop.length());
  if (name == "revindex") return integer(loop.length() - loop.index0);
  if (name == "revindex0") return integer(loop.length() - loop.index0 - 1);
  if (name == "previtem") return loop.previous;
  if (name == "nextitem") return loop.look_ahead() ? loop.ahead.front() : Value::undefined("an element after the last");
  if (name == "depth") return integer(1);
  if (name == "depth0") return integer(0);
  return Value::undefined("'loop." + name + "'");
}

Value Interpreter::attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) budget_.fail("{} is undefined", value.undefined_name());
  if (std::optional<Value> method = bound_method(value, name)) return *method;
  if (value.loop() != nullptr) return loop_attribute(*value.loop(), name);
  if (const Namespace* space = value.space()) {
    budget_.charge(1 + space->attributes.size() / 8);
    const Value* found = space->find(name);
    return found != nullptr ? *found : Value::undefined("'" + name + "' of the namespace");
  }
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(budget_, Value::text(name))) return *found;
  }
  return Value::undefined("'" + name + "'");
}

Value Interpreter::item(const Value& value, const Value& key) {
  if (value.is_undefined()) budget_.fail("{} is undefined", value.undefined_name());
  if (const Dict* dict = value.dict()) {
    const bool can_be_key = key.text() != nullptr || key.is_number() || key.is_none();
    if (!can_be_key && key.list_or_tuple() != nullptr && key.sequence()->kind == SequenceKind::tuple) {
      budget_.unsupported("a tuple as a key");
    }
    if (const Value* found = can_be_key ? dict->find(budget_, key) : nullptr) return *found;
  }
  const bool indexed = value.text() != nullptr || value.list_or_tuple() != nullptr || value.range() != nullptr;
  if (indexed && key.is_integral()) return element_at(budget_, value, key.integer());
  if (key.text() == nullptr) return Value::undefined("an element that is not there");
  if (value.dict() == nullptr) return attribute(value, key.text()->bytes);
  if (std::optional<Value> method = bound_method(value, key.text()->bytes)) return *method;
  return Value::undefined(shown(key.text()->bytes));
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  const Budget::Level level(budget_);
  if (callee.is_undefined()) budget_.fail("{} is undefined", callee.undefined_name());
  const Function* function = callee.function();
  if (function == nullptr) budget_.fail("{} cannot be called", type_name(callee));
  if (function->macro != nullptr) return call_macro(*function->macro, std::move(arguments));
  const Value none;
  return call_builtin(*this, *function->builtin, function->self != nullptr ? *function->self : none,
                      std::move(arguments));
}

}  // namespace qdelta::jinja
