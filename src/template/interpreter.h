// Runs a template's tree once.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "template/builtins.h"
#include "template/syntax.h"
#include "template/value.h"

namespace qdelta::jinja {

// Variables of the template, of an iteration, of a call. What is set in one is gone with it.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;  // the names are in the tree or the globals
  bool captured = false;  // a macro was defined here or below, and may be called later
};

struct Macro {
  const Signature* signature;
  const Body* body;
  Scope* scope;  // where it was defined
};

// The variable `loop`. Elements are asked for one by one, since the condition of a loop may depend on what its body has
// done; only `last`, `nextitem`, `length` and those that count from the end look ahead.
struct LoopState {
  std::function<bool(Value&)> pull;  // empty after the loop
  std::int64_t index0 = -1;
  Value previous, current;
  std::deque<Value> ahead;
  std::optional<Value> changed;  // what was last given to loop.changed()

  bool advance();
  [[nodiscard]] bool look_ahead();
  [[nodiscard]] std::int64_t length();
};

class Interpreter {
 public:
  Interpreter(const Limits& limits, std::function<std::int64_t()> clock);

  [[nodiscard]] std::string render(const Syntax& syntax, const nlohmann::ordered_json& variables);

  // For builtins.
  [[nodiscard]] Budget& budget() { return budget_; }
  [[nodiscard]] std::int64_t now() const;
  [[nodiscard]] Namespace* make_namespace();
  [[nodiscard]] Value attribute(const Value& value, const std::string& name);
  [[nodiscard]] Value item(const Value& value, const Value& key);
  [[nodiscard]] Value call(const Value& callee, Arguments arguments);

 private:
  enum class Flow : std::uint8_t { next, break_loop, continue_loop };
  // A scope for as long as this lives.
  class Within {
   public:
    Within(Interpreter& run, Scope* parent);
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;
    ~Within();

   private:
    Interpreter* run_;
    Scope* outer_;
  };

  // Statements, in interpreter.cpp.
  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow execute_if(const Statement& statement);
  Flow execute_loop(const Statement& statement);
  Flow execute_with(const Statement& statement);
  Flow execute_assign_block(const Statement& statement);
  Flow execute_filter(const Statement& statement);
  void execute_call(const Statement& statement);
  [[nodiscard]] bool passes(const Statement& loop, const Value& element);
  // What the body prints; `flow` is how it ended.
  [[nodiscard]] std::string captured(const Body& body, Flow& flow);
  [[nodiscard]] Value filtered(const Expression& filters, std::string text);
  [[nodiscard]] Value make_macro(const Signature& signature, const Body& body);
  [[nodiscard]] Value call_macro(const Macro& macro, Arguments arguments);
  void bind_parameters(const Macro& macro, Arguments& arguments);
  void print(std::string_view text);
  void assign(const Expression& target, Value value);
  void set(std::string_view name, Value value);

  // Expressions, in evaluate.cpp.
  [[nodiscard]] Value evaluate(const Expression& expression);
  [[nodiscard]] Value lookup(const std::string& name);
  [[nodiscard]] std::vector<Value> evaluate_all(const Expression& expression);
  [[nodiscard]] Value evaluate_dict(const Expression& expression);
  [[nodiscard]] Value evaluate_slice(const Expression& expression);
  [[nodiscard]] Value evaluate_compare(const Expression& expression);
  [[nodiscard]] Value evaluate_concat(const Expression& expression);
  [[nodiscard]] Value evaluate_filter_or_test(const Expression& expression);
  [[nodiscard]] Arguments evaluate_arguments(const Expression& call);
  [[nodiscard]] static Value loop_attribute(LoopState& loop, const std::string& name);
  [[nodiscard]] std::optional<Value> bound_method(const Value& self, std::string_view name);

  Budget budget_;
  std::function<std::int64_t()> clock_;
  std::string* out_ = nullptr;
  Scope* scope_ = nullptr;
  std::vector<Value> block_text_;  // of the filter blocks around
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  std::deque<Macro> macros_;
  std::deque<Namespace> namespaces_;
  std::deque<LoopState> loops_;
  std::deque<std::string> names_;  // of variables from JSON
};

}  // namespace qdelta::jinja
