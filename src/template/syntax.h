// A template as a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "template/value.h"

namespace qdelta::jinja {

struct Builtin;
struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<Statement>;

enum class ExpressionKind : std::uint8_t {
  constant,
  name,
  namespace_attribute,  // as a target: `text` of the namespace operands[0]
  list,
  tuple,
  dict,       // key, value, key, value ...
  attribute,  // operands[0].text
  item,       // operands[0][operands[1]]
  slice,      // operands[0][operands[1] : operands[2] : operands[3]], null where there is none
  call,       // operands[0](operands[1], ...)
  filter,     // operands[0] | builtin(operands[1], ...); a null operands[0] is the text of the block around it
  test,       // the same, with `is`
  unary,      // operators[0]: subtract, add or negation
  binary,     // operators[0]
  logical_and,
  logical_or,
  compare,      // operands[0] operators[0] operands[1] operators[1] ...
  concat,       // ~ of all
  conditional,  // operands[1] if operands[0] else operands[2], which may be null
};

enum class Operator : std::uint8_t {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  negation,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  in,
  not_in
};

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  int line = 0;
  int depth = 1;
  std::string text;
  Value constant;
  std::vector<ExpressionPtr> operands;
  std::vector<Operator> operators;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  ExpressionPtr rest, keyword_rest;  // *args and **kwargs
  const Builtin* builtin = nullptr;
};

enum class StatementKind : std::uint8_t {
  data,          // text
  output,        // {{ value }}
  conditional,   // branches
  loop,          // for target in value if condition: body, else otherwise
  assign,        // set target = value
  assign_block,  // set target: body, through the filters of `value` if there are any
  macro,
  call,        // call(signature) value: body
  generation,  // body
  filter,      // body through the filters of `value`
  with,        // targets and values of `branches`, then body
  break_loop,
  continue_loop
};

struct Branch {
  ExpressionPtr condition;  // null for else; of `with`, the target
  ExpressionPtr value;      // of `with`
  Body body;
};

struct Signature {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  bool takes_rest = false, takes_keywords = false, takes_caller = false;
};

struct Statement {
  StatementKind kind = StatementKind::data;
  int line = 0;
  std::string text;
  ExpressionPtr target, value, condition;
  std::vector<Branch> branches;
  Body body, otherwise;
  Signature signature;
  bool uses_loop = false;  // of a loop: its body, or one within, names the variable `loop`
};

struct Syntax {
  Body body;
};

// Throws Error: corrupt or unsupported.
[[nodiscard]] Syntax parse(std::string_view source);

}  // namespace qdelta::jinja
