#include "template/interpreter.h"

#include <algorithm>
#include <ctime>

#include "template/text.h"

namespace qdelta::jinja {
namespace {

// Steps for what stays in memory until the end of the rendering.
constexpr std::size_t kCostOfKept = 16;

}  // namespace

bool LoopState::advance() {
  Value next;
  if (!ahead.empty()) {
    next = std::move(ahead.front());
    ahead.pop_front();
  } else if (!pull || !pull(next)) {
    return false;
  }
  previous = index0 < 0 ? Value::undefined("an element before the first") : current;
  current = std::move(next);
  ++index0;
  return true;
}

bool LoopState::look_ahead() {
  if (!ahead.empty()) return true;
  Value next;
  if (!pull || !pull(next)) return false;
  ahead.push_back(std::move(next));
  return true;
}

std::int64_t LoopState::length() {
  for (Value next; pull && pull(next);) ahead.push_back(next);
  return index0 + 1 + static_cast<std::int64_t>(ahead.size());
}

Interpreter::Within::Within(Interpreter& run, Scope* parent) : run_(&run), outer_(run.scope_) {
  if (run.free_scopes_.empty()) {
    run.scopes_.emplace_back();
    run.free_scopes_.push_back(&run.scopes_.back());
  }
  run.scope_ = run.free_scopes_.back();
  run.free_scopes_.pop_back();
  run.scope_->parent = parent;
}

Interpreter::Within::~Within() {
  Scope* scope = std::exchange(run_->scope_, outer_);
  if (scope->captured) return;
  scope->variables.clear();
  run_->free_scopes_.push_back(scope);
}

Interpreter::Interpreter(const Limits& limits, std::function<std::int64_t()> clock)
    : budget_(limits), clock_(std::move(clock)) {}

std::int64_t Interpreter::now() const { return clock_ ? clock_() : static_cast<std::int64_t>(std::time(nullptr)); }

Namespace* Interpreter::make_namespace() {
  budget_.charge(kCostOfKept);
  return &namespaces_.emplace_back();
}

std::string Interpreter::render(const Syntax& syntax, const nlohmann::ordered_json& variables) {
  budget_.line = 1;
  if (!variables.is_object()) budget_.fail("its variables are not a JSON object");
  std::string result;
  out_ = &result;
  const Within globals(*this, nullptr);
  for (const auto& [name, value] : variables.items()) {
    names_.push_back(name);
    scope_->variables.emplace_back(names_.back(), Value::from_json(budget_, value));
  }
  const Within own(*this, scope_);
  execute(syntax.body);
  return result;
}

void Interpreter::print(std::string_view text) {
  budget_.charge_bytes(text.size());
  if (text.size() > budget_.limits().output - out_->size()) budget_.charge_bytes(out_->size() + text.size());
  out_->append(text);
}

void Interpreter::set(std::string_view name, Value value) {
  for (auto& [known, old] : scope_->variables) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  scope_->variables.emplace_back(name, std::move(value));
}

void Interpreter::assign(const Expression& target, Value value) {
  if (target.kind == ExpressionKind::name) {
    set(target.text, std::move(value));
    return;
  }
  if (target.kind == ExpressionKind::namespace_attribute) {
    Namespace* space = lookup(target.operands[0]->text).space();
    if (space == nullptr) budget_.fail("attributes can be set of namespaces only: {}", target.operands[0]->text);
    budget_.charge(space->attributes.size());
    space->set(target.text, std::move(value));
    return;
  }
  if (value.is_undefined() && !target.operands.empty()) budget_.fail("{} is undefined", value.undefined_name());
  const std::vector<Value> parts = elements_of(budget_, value);
  if (parts.size() != target.operands.size()) {
    budget_.fail("{} values for {} variables", parts.size(), target.operands.size());
  }
  for (std::size_t i = 0; i < parts.size(); ++i) assign(*target.operands[i], parts[i]);
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  const Budget::Level level(budget_);
  for (const Statement& statement : body) {
    const Flow flow = execute(statement);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  budget_.charge(1);
  budget_.line = statement.line;
  switch (statement.kind) {
    case StatementKind::data:
      print(statement.text);
      return Flow::next;
    case StatementKind::output:
      print(str(budget_, evaluate(*statement.value)));
      return Flow::next;
    case StatementKind::conditional:
      return execute_if(statement);
    case StatementKind::loop:
      return execute_loop(statement);
    case StatementKind::assign:
      assign(*statement.target, evaluate(*statement.value));
      return Flow::next;
    case StatementKind::assign_block:
      return execute_assign_block(statement);
    case StatementKind::macro:
      set(statement.signature.name, make_macro(statement.signature, statement.body));
      return Flow::next;
    case StatementKind::call:
      execute_call(statement);
      return Flow::next;
    case StatementKind::generation:
      print(str(budget_, call(make_macro(statement.signature, statement.body), {})));
      return Flow::next;
    case StatementKind::filter:
      return execute_filter(statement);
    case StatementKind::with:
      return execute_with(statement);
    case StatementKind::break_loop:
      return Flow::break_loop;
    case StatementKind::continue_loop:
      return Flow::continue_loop;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition == nullptr || truth(evaluate(*branch.condition))) return execute(branch.body);
  }
  return Flow::next;
}

bool Interpreter::passes(const Statement& loop, const Value& element) {
  if (loop.condition == nullptr) return true;
  const Within scope(*this, scope_);
  assign(*loop.target, element);
  return truth(evaluate(*loop.condition));
}

Interpreter::Flow Interpreter::execute_loop(const Statement& statement) {
  Iterator iterator(budget_, evaluate(*statement.value));
  Scope* outer = scope_;
  const auto pull = [this, &iterator, &statement, outer](Value& element) {
    Scope* inner = std::exchange(scope_, outer);  // asked for from within the body, the condition is still outside
    bool found = false;
    while (!found && iterator.next(element)) found = passes(statement, element);
    scope_ = inner;
    return found;
  };
  LoopState* state = nullptr;
  if (statement.uses_loop) {
    budget_.charge(kCostOfKept);
    state = &loops_.emplace_back();
    state->pull = pull;
  }
  bool any = false;
  Flow flow = Flow::next;
  for (Value element; flow != Flow::break_loop && (state != nullptr ? state->advance() : pull(element)); any = true) {
    const Within scope(*this, outer);
    budget_.line = statement.line;
    if (state != nullptr) set("loop", Value(state));
    assign(*statement.target, state != nullptr ? state->current : element);
    flow = execute(statement.body);
  }
  if (state != nullptr) {
    state->pull = nullptr;
    state->ahead.clear();
  }
  if (any || statement.otherwise.empty()) return Flow::next;
  const Within scope(*this, outer);
  return execute(statement.otherwise);
}

Interpreter::Flow Interpreter::execute_with(const Statement& statement) {
  std::vector<Value> values;
  for (const Branch& branch : statement.branches) values.push_back(evaluate(*branch.value));
  const Within scope(*this, scope_);
  for (std::size_t i = 0; i < values.size(); ++i) assign(*statement.branches[i].condition, values[i]);
  return execute(statement.body);
}

std::string Interpreter::captured(const Body& body, Flow& flow) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  flow = execute(body);
  out_ = outer;
  return text;
}

Value Interpreter::filtered(const Expression& filters, std::string text) {
  block_text_.push_back(Value::text(text));
  Value result = evaluate(filters);
  block_text_.pop_back();
  return result;
}

Interpreter::Flow Interpreter::execute_assign_block(const Statement& statement) {
  Flow flow = Flow::next;
  Value value;
  {
    const Within scope(*this, scope_);
    std::string text = captured(statement.body, flow);
    if (flow != Flow::next) return flow;
    value = statement.value != nullptr ? filtered(*statement.value, std::move(text)) : Value::text(text);
  }
  assign(*statement.target, std::move(value));
  return Flow::next;
}

Interpreter::Flow Interpreter::execute_filter(const Statement& statement) {
  Flow flow = Flow::next;
  const Within scope(*this, scope_);
  std::string text = captured(statement.body, flow);
  if (flow != Flow::next) return flow;
  print(str(budget_, filtered(*statement.value, std::move(text))));
  return Flow::next;
}

Value Interpreter::make_macro(const Signature& signature, const Body& body) {
  budget_.charge(kCostOfKept);
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) scope->captured = true;
  Function function;
  function.macro = &macros_.emplace_back(Macro{&signature, &body, scope_});
  return {function};
}

void Interpreter::execute_call(const Statement& statement) {
  const Value callee = evaluate(*statement.value->operands[0]);
  Arguments arguments = evaluate_arguments(*statement.value);
  arguments.named.emplace_back("caller", make_macro(statement.signature, statement.body));
  print(str(budget_, call(callee, std::move(arguments))));
}

void Interpreter::bind_parameters(const Macro& macro, Arguments& arguments) {
  const Signature& signature = *macro.signature;
  const std::size_t count = signature.parameters.size();
  const auto take_named = [&arguments](std::string_view name) -> std::optional<Value> {
    const auto at = std::find_if(arguments.named.begin(), arguments.named.end(),
                                 [name](const auto& argument) { return argument.first == name; });
    if (at == arguments.named.end()) return std::nullopt;
    Value value = std::move(at->second);
    arguments.named.erase(at);
    return value;
  };
  std::vector<std::optional<Value>> given(count);
  for (std::size_t i = 0; i < count; ++i) {
    given[i] = i < arguments.positional.size() ? arguments.positional[i] : take_named(signature.parameters[i]);
  }
  if (signature.takes_caller) set("caller", take_named("caller").value_or(Value::undefined("the caller")));
  if (signature.takes_keywords) {
    Dict rest;
    for (auto& [name, value] : arguments.named) rest.insert(budget_, Value::text(name), std::move(value));
    set("kwargs", Value::dict(budget_, std::move(rest)));
  } else if (!arguments.named.empty()) {
    budget_.fail("the macro '{}' takes no argument '{}'", signature.name, arguments.named[0].first);
  }
  if (signature.takes_rest) {
    const auto from = std::min(count, arguments.positional.size());
    set("varargs",
        Value::sequence(budget_,
                        {arguments.positional.begin() + static_cast<std::ptrdiff_t>(from), arguments.positional.end()},
                        SequenceKind::tuple));
  } else if (arguments.positional.size() > count) {
    budget_.fail("the macro '{}' takes {} arguments, not {}", signature.name, count, arguments.positional.size());
  }
  const std::size_t needed = count - signature.defaults.size();
  for (std::size_t i = 0; i < count; ++i) {  // a default may use the parameters before it
    if (!given[i]) {
      given[i] = i >= needed ? evaluate(*signature.defaults[i - needed])
                             : Value::undefined("the parameter '" + signature.parameters[i] + "'");
    }
    set(signature.parameters[i], *given[i]);
  }
}

Value Interpreter::call_macro(const Macro& macro, Arguments arguments) {
  const Budget::Level level(budget_);
  const Within scope(*this, macro.scope);
  bind_parameters(macro, arguments);
  Flow flow = Flow::next;
  return Value::text(captured(*macro.body, flow));
}

}  // namespace qdelta::jinja
