#include "template/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/untrusted_text.h"

namespace qdelta::jinja {
namespace {

constexpr int kDeepestSyntax = 200;  // of statements and expressions within each other

}  // namespace

Parser::Level::Level(Parser& parser) : parser_(&parser) {
  if (++parser.depth_ > kDeepestSyntax) {
    --parser.depth_;
    throw not_supported(fmt::format("more than {} levels of nesting", kDeepestSyntax), parser.current().line);
  }
}

Token Parser::take() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::skip_op(std::string_view text) {
  if (!is_op(text)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  take();
  return true;
}

void Parser::expect_op(std::string_view text) {
  if (!skip_op(text)) unexpected();
}

void Parser::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) throw syntax_error(current().line, fmt::format("{} is missing", what));
  take();
}

std::string Parser::expect_name() {
  if (current().kind != TokenKind::name) unexpected();
  return take().text;
}

void Parser::unexpected() const {
  switch (current().kind) {
    case TokenKind::end:
      throw syntax_error(current().line, "the template ends too early");
    case TokenKind::block_end:
    case TokenKind::output_end:
      throw syntax_error(current().line, "the tag ends too early");
    default:
      throw syntax_error(current().line, fmt::format("{} is not expected", shown(current().text)));
  }
}

Syntax Parser::run() { return {parse_body({})}; }

Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Level level(*this);
  Body body;
  while (current().kind != TokenKind::end) {
    Statement statement;
    statement.line = current().line;
    if (current().kind == TokenKind::data) {
      statement.text = take().text;
    } else if (current().kind == TokenKind::output_begin) {
      take();
      statement.kind = StatementKind::output;
      statement.value = parse_tuple(true);
      expect(TokenKind::output_end, "the end of {{");
    } else {
      expect(TokenKind::block_begin, "{%");
      if (std::any_of(ends.begin(), ends.end(), [this](std::string_view end) { return is_name(end); })) return body;
      statement = parse_statement();
      expect(TokenKind::block_end, "the end of {%");
    }
    body.push_back(std::move(statement));
  }
  if (ends.size() > 0) {
    throw syntax_error(current().line, fmt::format("the template ends where '{}' is missing", *(ends.end() - 1)));
  }
  return body;
}

Body Parser::parse_block(std::initializer_list<std::string_view> ends) {
  skip_op(":");
  expect(TokenKind::block_end, "the end of {%");
  return parse_body(ends);
}

Statement Parser::parse_statement() {
  Statement statement;
  statement.line = current().line;
  const std::string tag = expect_name();
  if (tag == "if") {
    parse_if(statement);
  } else if (tag == "for") {
    parse_for(statement);
  } else if (tag == "set") {
    parse_set(statement);
  } else if (tag == "macro") {
    parse_macro(statement);
  } else if (tag == "call") {
    parse_call_block(statement);
  } else if (tag == "filter") {
    parse_filter_block(statement);
  } else if (tag == "with") {
    parse_with(statement);
  } else if (tag == "generation") {
    statement.kind = StatementKind::generation;
    parse_function_body(statement, "endgeneration");
  } else if (tag == "break" || tag == "continue") {
    if (loops_ == 0) throw syntax_error(statement.line, fmt::format("'{}' outside of a loop", tag));
    statement.kind = tag == "break" ? StatementKind::break_loop : StatementKind::continue_loop;
  } else if (tag == "elif" || tag == "else" || tag.starts_with("end")) {
    throw syntax_error(statement.line, fmt::format("the tag {} without one it belongs to", shown(tag)));
  } else {
    throw not_supported(fmt::format("the tag '{}'", tag), statement.line);
  }
  return statement;
}

void Parser::parse_if(Statement& statement) {
  statement.kind = StatementKind::conditional;
  while (true) {
    Branch branch;
    branch.condition = parse_tuple(false);
    branch.body = parse_block({"elif", "else", "endif"});
    statement.branches.push_back(std::move(branch));
    const std::string tag = take().text;
    if (tag == "elif") continue;
    if (tag == "else") {
      Branch otherwise;
      otherwise.body = parse_block({"endif"});
      statement.branches.push_back(std::move(otherwise));
      take();
    }
    return;
  }
}

void Parser::parse_for(Statement& statement) {
  statement.kind = StatementKind::loop;
  ++for_blocks_;
  statement.target = parse_target(false, "in");
  if (!skip_name("in")) unexpected();
  statement.value = parse_tuple(false, false, "recursive");
  if (skip_name("if")) statement.condition = parse_expression();
  if (is_name("recursive")) throw not_supported("a recursive loop", current().line);
  const int before = uses_.loop;
  ++loops_;
  statement.body = parse_block({"else", "endfor"});
  --loops_;
  statement.uses_loop = uses_.loop > before;
  if (take().text == "else") {
    statement.otherwise = parse_block({"endfor"});
    take();
  }
  --for_blocks_;
}

void Parser::parse_set(Statement& statement) {
  statement.target = parse_target(true);
  if (skip_op("=")) {
    statement.kind = StatementKind::assign;
    statement.value = parse_tuple(true);
    return;
  }
  statement.kind = StatementKind::assign_block;
  if (is_op("|")) statement.value = parse_filters(nullptr);
  statement.body = parse_block({"endset"});
  take();
}

void Parser::parse_macro(Statement& statement) {
  statement.kind = StatementKind::macro;
  statement.signature.name = expect_name();
  parse_signature(statement.signature);
  parse_function_body(statement, "endmacro");
}

void Parser::parse_call_block(Statement& statement) {
  statement.kind = StatementKind::call;
  if (is_op("(")) parse_signature(statement.signature);
  statement.value = parse_expression();
  if (statement.value->kind != ExpressionKind::call) throw syntax_error(statement.line, "'call' needs a call");
  parse_function_body(statement, "endcall");
}

// What is called later: a loop around it is none that it could leave.
void Parser::parse_function_body(Statement& statement, std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  const Uses before = uses_;
  statement.body = parse_block({end});
  take();
  loops_ = loops;
  statement.signature.takes_caller = uses_.caller > before.caller;
  statement.signature.takes_rest = uses_.rest > before.rest;
  statement.signature.takes_keywords = uses_.keywords > before.keywords;
}

void Parser::parse_filter_block(Statement& statement) {
  statement.kind = StatementKind::filter;
  statement.value = parse_filters(nullptr, true);
  statement.body = parse_block({"endfilter"});
  take();
}

void Parser::parse_with(Statement& statement) {
  statement.kind = StatementKind::with;
  while (current().kind != TokenKind::block_end) {
    if (!statement.branches.empty()) expect_op(",");
    Branch branch;
    branch.condition = parse_target(false);
    expect_op("=");
    branch.value = parse_expression();
    statement.branches.push_back(std::move(branch));
  }
  statement.body = parse_block({"endwith"});
  take();
}

void Parser::parse_signature(Signature& signature) {
  expect_op("(");
  while (!is_op(")")) {
    if (!signature.parameters.empty()) expect_op(",");
    const int line = current().line;
    signature.parameters.push_back(expect_name());
    if (skip_op("=")) {
      signature.defaults.push_back(parse_expression());
    } else if (!signature.defaults.empty()) {
      throw syntax_error(line, "a parameter without a default after one that has one");
    }
    const std::string& name = signature.parameters.back();
    if (name == "caller" || name == "varargs" || name == "kwargs") {
      throw not_supported(fmt::format("the parameter name '{}'", name), line);
    }
    if (std::count(signature.parameters.begin(), signature.parameters.end(), name) > 1) {
      throw syntax_error(line, fmt::format("the parameter {} twice", shown(name)));
    }
  }
  take();
}

ExpressionPtr Parser::parse_target(bool with_namespace, std::string_view end) {
  const int line = current().line;
  std::vector<ExpressionPtr> targets;
  bool is_tuple = false;
  while (true) {
    if (!targets.empty()) expect_op(",");
    if (at_tuple_end(end)) break;
    const bool name_after = current().kind == TokenKind::name;
    const Uses before = uses_;
    targets.push_back(parse_primary(with_namespace));
    if (name_after) uses_ = before;  // it is written, not read
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (targets.empty()) unexpected();
  ExpressionPtr target;
  if (is_tuple) {
    target = make(ExpressionKind::tuple, line);
    for (ExpressionPtr& one : targets) add(*target, std::move(one));
  } else {
    target = std::move(targets[0]);
  }
  check_target(*target);
  return target;
}

void Parser::check_target(const Expression& target) const {
  if (target.kind == ExpressionKind::namespace_attribute) return;
  if (target.kind == ExpressionKind::name) {
    if (target.text == "loop" && for_blocks_ > 0) throw syntax_error(target.line, "'loop' cannot be set within a loop");
    return;
  }
  if (target.kind != ExpressionKind::tuple && target.kind != ExpressionKind::list) {
    throw syntax_error(target.line, "a value cannot be assigned to this");
  }
  for (const ExpressionPtr& one : target.operands) check_target(*one);
}

Syntax parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace qdelta::jinja
