#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "io/untrusted_text.h"
#include "template/builtins.h"
#include "template/parser.h"

namespace qdelta::jinja {
namespace {

constexpr int kDeepestExpression = 200;  // a long sum is a deep tree

struct OperatorName {
  std::string_view text;
  Operator op;
};
constexpr std::array<OperatorName, 6> kComparisons = {{{"==", Operator::eq},
                                                       {"!=", Operator::ne},
                                                       {"<", Operator::lt},
                                                       {"<=", Operator::le},
                                                       {">", Operator::gt},
                                                       {">=", Operator::ge}}};
constexpr std::array<OperatorName, 4> kProducts = {
    {{"*", Operator::multiply}, {"/", Operator::divide}, {"//", Operator::floor_divide}, {"%", Operator::modulo}}};
constexpr std::array<OperatorName, 2> kSums = {{{"+", Operator::add}, {"-", Operator::subtract}}};

template <std::size_t N>
const OperatorName* among(const std::array<OperatorName, N>& names, const Token& token) {
  if (token.kind != TokenKind::op) return nullptr;
  const auto* at = std::find_if(names.begin(), names.end(), [&](const auto& row) { return row.text == token.text; });
  return at == names.end() ? nullptr : at;
}

}  // namespace

ExpressionPtr Parser::make(ExpressionKind kind, int line) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

void Parser::within(Expression& expression, const ExpressionPtr& part) {
  if (part != nullptr) expression.depth = std::max(expression.depth, part->depth + 1);
  if (expression.depth > kDeepestExpression) {
    throw not_supported(fmt::format("an expression of more than {} levels", kDeepestExpression), expression.line);
  }
}

void Parser::add(Expression& expression, ExpressionPtr operand) {
  within(expression, operand);
  expression.operands.push_back(std::move(operand));
}

ExpressionPtr Parser::make(ExpressionKind kind, int line, ExpressionPtr first, ExpressionPtr second) {
  ExpressionPtr expression = make(kind, line);
  add(*expression, std::move(first));
  if (second != nullptr) add(*expression, std::move(second));
  return expression;
}

ExpressionPtr Parser::parse_expression(bool with_conditional) {
  const Level level(*this);
  const int line = current().line;
  ExpressionPtr expression = parse_or();
  while (with_conditional && skip_name("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    expression = make(ExpressionKind::conditional, line, std::move(condition), std::move(expression));
    add(*expression, std::move(otherwise));
  }
  return expression;
}

ExpressionPtr Parser::parse_or() {
  ExpressionPtr left = parse_and();
  while (is_name("or")) {
    const int line = take().line;
    left = make(ExpressionKind::logical_or, line, std::move(left), parse_and());
  }
  return left;
}

ExpressionPtr Parser::parse_and() {
  ExpressionPtr left = parse_not();
  while (is_name("and")) {
    const int line = take().line;
    left = make(ExpressionKind::logical_and, line, std::move(left), parse_not());
  }
  return left;
}

ExpressionPtr Parser::parse_not() {
  const Level level(*this);
  if (!is_name("not")) return parse_compare();
  const int line = take().line;
  ExpressionPtr expression = make(ExpressionKind::unary, line, parse_not());
  expression->operators.push_back(Operator::negation);
  return expression;
}

ExpressionPtr Parser::parse_compare() {
  ExpressionPtr expression = parse_sum();
  bool compares = false;
  while (true) {
    Operator op = Operator::in;
    const int line = current().line;
    if (const OperatorName* comparison = among(kComparisons, current())) {
      op = comparison->op;
      take();
    } else if (is_name("not") && look().kind == TokenKind::name && look().text == "in") {
      op = Operator::not_in;
      take();
      take();
    } else if (!skip_name("in")) {
      break;
    }
    if (!compares) expression = make(ExpressionKind::compare, line, std::move(expression));
    compares = true;
    expression->operators.push_back(op);
    add(*expression, parse_sum());
  }
  return expression;
}

ExpressionPtr Parser::parse_sum() {
  ExpressionPtr left = parse_concat();
  while (const OperatorName* found = among(kSums, current())) {
    const int line = take().line;
    left = make(ExpressionKind::binary, line, std::move(left), parse_concat());
    left->operators.push_back(found->op);
  }
  return left;
}

ExpressionPtr Parser::parse_concat() {
  ExpressionPtr first = parse_product();
  if (!is_op("~")) return first;
  ExpressionPtr concat = make(ExpressionKind::concat, current().line, std::move(first));
  while (skip_op("~")) add(*concat, parse_product());
  return concat;
}

ExpressionPtr Parser::parse_product() {
  ExpressionPtr left = parse_power();
  while (const OperatorName* found = among(kProducts, current())) {
    const int line = take().line;
    left = make(ExpressionKind::binary, line, std::move(left), parse_power());
    left->operators.push_back(found->op);
  }
  return left;
}

ExpressionPtr Parser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (is_op("**")) {
    const int line = take().line;
    left = make(ExpressionKind::binary, line, std::move(left), parse_unary());
    left->operators.push_back(Operator::power);
  }
  return left;
}

ExpressionPtr Parser::parse_unary(bool with_filter) {
  const Level level(*this);
  ExpressionPtr expression;
  if (is_op("-") || is_op("+")) {
    const Token sign = take();
    expression = make(ExpressionKind::unary, sign.line, parse_unary(false));
    expression->operators.push_back(sign.text == "-" ? Operator::subtract : Operator::add);
  } else {
    expression = parse_primary();
  }
  expression = parse_postfix(std::move(expression));
  return with_filter ? parse_filters_and_tests(std::move(expression)) : std::move(expression);
}

ExpressionPtr Parser::parse_name(bool with_namespace) {
  const Token token = take();
  ExpressionPtr expression = make(ExpressionKind::constant, token.line);
  if (token.text == "true" || token.text == "True") {
    expression->constant = Value(true);
  } else if (token.text == "false" || token.text == "False") {
    expression->constant = Value(false);
  } else if (token.text == "none" || token.text == "None") {
    expression->constant = Value(None{});
  } else {
    expression->kind = ExpressionKind::name;
    expression->text = token.text;
    if (with_namespace && skip_op(".")) {
      expression = make(ExpressionKind::namespace_attribute, token.line, std::move(expression));
      expression->text = expect_name();
      return expression;
    }
    uses_.loop += token.text == "loop" ? 1 : 0;
    uses_.caller += token.text == "caller" ? 1 : 0;
    uses_.rest += token.text == "varargs" ? 1 : 0;
    uses_.keywords += token.text == "kwargs" ? 1 : 0;
  }
  return expression;
}

ExpressionPtr Parser::parse_primary(bool with_namespace) {
  const Level level(*this);
  const int line = current().line;
  if (current().kind == TokenKind::name) return parse_name(with_namespace);
  if (current().kind == TokenKind::string) {
    std::string text;
    while (current().kind == TokenKind::string) text += take().text;
    ExpressionPtr expression = make(ExpressionKind::constant, line);
    expression->constant = Value::text(text);
    return expression;
  }
  if (current().kind == TokenKind::integer || current().kind == TokenKind::real) {
    const Token token = take();
    ExpressionPtr expression = make(ExpressionKind::constant, line);
    expression->constant = token.kind == TokenKind::integer ? Value(token.integer) : Value(token.real);
    return expression;
  }
  if (is_op("[")) return parse_list();
  if (is_op("{")) return parse_dict();
  expect_op("(");
  ExpressionPtr expression = parse_tuple(true, true);
  expect_op(")");
  return expression;
}

bool Parser::at_tuple_end(std::string_view end) const {
  return current().kind == TokenKind::block_end || current().kind == TokenKind::output_end || is_op(")") ||
         (!end.empty() && is_name(end));
}

ExpressionPtr Parser::parse_tuple(bool with_conditional, bool parentheses, std::string_view end) {
  ExpressionPtr tuple = make(ExpressionKind::tuple, current().line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->operands.empty()) expect_op(",");
    if (at_tuple_end(end)) break;
    add(*tuple, parse_expression(with_conditional));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return tuple;
  if (!tuple->operands.empty()) return std::move(tuple->operands[0]);
  if (!parentheses) unexpected();
  return tuple;
}

ExpressionPtr Parser::parse_list() {
  ExpressionPtr list = make(ExpressionKind::list, take().line);
  while (!is_op("]")) {
    if (!list->operands.empty()) expect_op(",");
    if (is_op("]")) break;
    add(*list, parse_expression());
  }
  take();
  return list;
}

ExpressionPtr Parser::parse_dict() {
  ExpressionPtr dict = make(ExpressionKind::dict, take().line);
  while (!is_op("}")) {
    if (!dict->operands.empty()) expect_op(",");
    if (is_op("}")) break;
    add(*dict, parse_expression());
    expect_op(":");
    add(*dict, parse_expression());
  }
  take();
  return dict;
}

ExpressionPtr Parser::parse_postfix(ExpressionPtr expression) {
  while (true) {
    if (is_op(".") || is_op("[")) {
      expression = parse_subscript(std::move(expression));
    } else if (is_op("(")) {
      expression = parse_call(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionPtr Parser::parse_filters_and_tests(ExpressionPtr expression) {
  while (true) {
    if (is_op("|")) {
      expression = parse_filters(std::move(expression));
    } else if (is_name("is")) {
      expression = parse_test(std::move(expression));
    } else if (is_op("(")) {
      expression = parse_call(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionPtr Parser::parse_subscript(ExpressionPtr expression) {
  const Token token = take();
  if (token.text == "[") return parse_item(std::move(expression), token.line);
  if (current().kind == TokenKind::integer) {
    const Token index = take();
    ExpressionPtr constant = make(ExpressionKind::constant, index.line);
    constant->constant = Value(index.integer);
    return make(ExpressionKind::item, token.line, std::move(expression), std::move(constant));
  }
  ExpressionPtr attribute = make(ExpressionKind::attribute, token.line, std::move(expression));
  attribute->text = expect_name();
  return attribute;
}

ExpressionPtr Parser::parse_item(ExpressionPtr expression, int line) {
  const auto absent = [this] { return is_op(":") || is_op("]") || is_op(","); };
  ExpressionPtr first = is_op(":") ? nullptr : parse_expression();
  if (is_op(":")) {
    ExpressionPtr slice = make(ExpressionKind::slice, line, std::move(expression));
    add(*slice, std::move(first));
    take();
    add(*slice, absent() ? nullptr : parse_expression());
    const bool has_step = skip_op(":");
    add(*slice, !has_step || absent() ? nullptr : parse_expression());
    if (is_op(",")) throw not_supported("a slice of several dimensions", line);
    expect_op("]");
    return slice;
  }
  if (is_op(",")) {
    ExpressionPtr tuple = make(ExpressionKind::tuple, line, std::move(first));
    while (skip_op(",")) add(*tuple, parse_expression());
    first = std::move(tuple);
  }
  expect_op("]");
  return make(ExpressionKind::item, line, std::move(expression), std::move(first));
}

void Parser::parse_arguments(Expression& call) {
  const int line = current().line;
  const auto ensure = [line](bool condition) {
    if (!condition) throw syntax_error(line, "the arguments of a call are in the wrong order");
  };
  expect_op("(");
  bool first = true;
  while (!is_op(")")) {
    if (!first) expect_op(",");
    if (is_op(")")) break;
    first = false;
    if (skip_op("*")) {
      ensure(call.rest == nullptr && call.keyword_rest == nullptr);
      call.rest = parse_expression();
      within(call, call.rest);
    } else if (skip_op("**")) {
      ensure(call.keyword_rest == nullptr);
      call.keyword_rest = parse_expression();
      within(call, call.keyword_rest);
    } else if (current().kind == TokenKind::name && look().kind == TokenKind::op && look().text == "=") {
      ensure(call.keyword_rest == nullptr);
      std::string name = take().text;
      take();
      const auto same = [&name](const auto& keyword) { return keyword.first == name; };
      ensure(std::none_of(call.keywords.begin(), call.keywords.end(), same));
      call.keywords.emplace_back(std::move(name), parse_expression());
      within(call, call.keywords.back().second);
    } else {
      ensure(call.rest == nullptr && call.keyword_rest == nullptr && call.keywords.empty());
      add(call, parse_expression());
    }
  }
  take();
}

ExpressionPtr Parser::parse_call(ExpressionPtr callee) {
  ExpressionPtr call = make(ExpressionKind::call, current().line, std::move(callee));
  parse_arguments(*call);
  return call;
}

std::string Parser::parse_dotted_name() {
  std::string name = expect_name();
  while (skip_op(".")) name += '.' + expect_name();
  return name;
}

ExpressionPtr Parser::parse_filters(ExpressionPtr expression, bool first_without_bar) {
  while (first_without_bar || skip_op("|")) {
    first_without_bar = false;
    ExpressionPtr filter = make(ExpressionKind::filter, current().line, std::move(expression));
    filter->text = parse_dotted_name();
    filter->builtin = find_filter(filter->text);
    if (filter->builtin == nullptr) throw not_supported(fmt::format("the filter '{}'", filter->text), filter->line);
    if (is_op("(")) parse_arguments(*filter);
    check_named_builtins(*filter);
    expression = std::move(filter);
  }
  return expression;
}

// Filters that are given the name of another filter or of a test.
void Parser::check_named_builtins(const Expression& filter) {
  const bool attributes = filter.text == "selectattr" || filter.text == "rejectattr";
  const bool tests = attributes || filter.text == "select" || filter.text == "reject";
  if (!tests && filter.text != "map") return;
  const std::size_t place = attributes ? 2 : 1;
  if (filter.operands.size() <= place || filter.operands[place]->kind != ExpressionKind::constant) return;
  const Text* name = filter.operands[place]->constant.text();
  if (name == nullptr) return;
  if ((tests ? find_test(name->bytes) : find_filter(name->bytes)) == nullptr) {
    throw not_supported(fmt::format("the {} {}", tests ? "test" : "filter", shown(name->bytes)), filter.line);
  }
}

ExpressionPtr Parser::parse_test(ExpressionPtr expression) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExpressionPtr test = make(ExpressionKind::test, line, std::move(expression));
  test->text = parse_dotted_name();
  test->builtin = find_test(test->text);
  if (test->builtin == nullptr) throw not_supported(fmt::format("the test '{}'", test->text), line);
  const TokenKind next = current().kind;
  const bool value = next == TokenKind::name || next == TokenKind::string || next == TokenKind::integer ||
                     next == TokenKind::real || is_op("[") || is_op("{");
  if (is_op("(")) {
    parse_arguments(*test);
  } else if (value && !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) throw syntax_error(line, "a test of a test needs parentheses");
    add(*test, parse_postfix(parse_primary()));
  }
  if (!negated) return test;
  ExpressionPtr negation = make(ExpressionKind::unary, line, std::move(test));
  negation->operators.push_back(Operator::negation);
  return negation;
}

}  // namespace qdelta::jinja
