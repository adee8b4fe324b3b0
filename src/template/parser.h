// From tokens to a tree, by recursive descent in the order of Jinja's own parser.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "template/lexer.h"
#include "template/syntax.h"

namespace qdelta::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  [[nodiscard]] Syntax run();

 private:
  // One level of recursion.
  class Level {
   public:
    explicit Level(Parser& parser);
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --parser_->depth_; }

   private:
    Parser* parser_;
  };
  // How often these names were read so far: whether a part of the template reads them shows in the difference.
  struct Uses {
    int loop = 0, caller = 0, rest = 0, keywords = 0;
  };

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  [[nodiscard]] bool is_op(std::string_view text) const {
    return current().kind == TokenKind::op && current().text == text;
  }
  [[nodiscard]] bool is_name(std::string_view text) const {
    return current().kind == TokenKind::name && current().text == text;
  }
  Token take();
  bool skip_op(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_op(std::string_view text);
  void expect(TokenKind kind, std::string_view what);
  [[nodiscard]] std::string expect_name();
  [[noreturn]] void unexpected() const;

  // Statements, in parser.cpp. `ends` are the names of the tags that end the body; which it was is left to be read.
  [[nodiscard]] Body parse_body(std::initializer_list<std::string_view> ends);
  [[nodiscard]] Body parse_block(std::initializer_list<std::string_view> ends);  // and the end of the tag before
  [[nodiscard]] Statement parse_statement();
  void parse_if(Statement& statement);
  void parse_for(Statement& statement);
  void parse_set(Statement& statement);
  void parse_macro(Statement& statement);
  void parse_call_block(Statement& statement);
  void parse_filter_block(Statement& statement);
  void parse_with(Statement& statement);
  void parse_function_body(Statement& statement, std::string_view end);
  void parse_signature(Signature& signature);
  [[nodiscard]] ExpressionPtr parse_target(bool with_namespace, std::string_view end = "");
  void check_target(const Expression& target) const;

  // Expressions, in expression_parser.cpp.
  [[nodiscard]] static ExpressionPtr make(ExpressionKind kind, int line);
  [[nodiscard]] static ExpressionPtr make(ExpressionKind kind, int line, ExpressionPtr first,
                                          ExpressionPtr second = nullptr);
  static void add(Expression& expression, ExpressionPtr operand);
  // Counts the levels of a part.
  static void within(Expression& expression, const ExpressionPtr& part);
  [[nodiscard]] ExpressionPtr parse_expression(bool with_conditional = true);
  [[nodiscard]] ExpressionPtr parse_or();
  [[nodiscard]] ExpressionPtr parse_and();
  [[nodiscard]] ExpressionPtr parse_not();
  [[nodiscard]] ExpressionPtr parse_compare();
  [[nodiscard]] ExpressionPtr parse_sum();
  [[nodiscard]] ExpressionPtr parse_concat();
  [[nodiscard]] ExpressionPtr parse_product();
  [[nodiscard]] ExpressionPtr parse_power();
  [[nodiscard]] ExpressionPtr parse_unary(bool with_filter = true);
  [[nodiscard]] ExpressionPtr parse_primary(bool with_namespace = false);
  [[nodiscard]] ExpressionPtr parse_name(bool with_namespace);
  [[nodiscard]] ExpressionPtr parse_tuple(bool with_conditional, bool parentheses = false, std::string_view end = "");
  [[nodiscard]] ExpressionPtr parse_list();
  [[nodiscard]] ExpressionPtr parse_dict();
  [[nodiscard]] ExpressionPtr parse_postfix(ExpressionPtr expression);
  [[nodiscard]] ExpressionPtr parse_filters_and_tests(ExpressionPtr expression);
  [[nodiscard]] ExpressionPtr parse_subscript(ExpressionPtr expression);
  [[nodiscard]] ExpressionPtr parse_item(ExpressionPtr expression, int line);
  [[nodiscard]] ExpressionPtr parse_call(ExpressionPtr callee);
  [[nodiscard]] ExpressionPtr parse_filters(ExpressionPtr expression, bool first_without_bar = false);
  [[nodiscard]] ExpressionPtr parse_test(ExpressionPtr expression);
  void parse_arguments(Expression& call);
  [[nodiscard]] std::string parse_dotted_name();
  static void check_named_builtins(const Expression& filter);
  [[nodiscard]] bool at_tuple_end(std::string_view end) const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;       // around this place, within the same macro
  int for_blocks_ = 0;  // around this place at all
  Uses uses_;
};

}  // namespace qdelta::jinja
