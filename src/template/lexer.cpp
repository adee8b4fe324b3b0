#include "template/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "data/unicode.h"
#include "io/untrusted_text.h"
#include "template/string_literal.h"
#include "template/strings.h"

namespace qdelta::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// \r\n and \r as \n, and without the last one.
std::string normalized_source(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      result += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      result += '\n';
    }
  }
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  enum class Tag : std::uint8_t { block, output, comment };

  [[nodiscard]] std::string_view rest() const { return std::string_view(source_).substr(at_); }
  void add(TokenKind kind, std::string text = {}) { tokens_.push_back({kind, line_, std::move(text), 0, 0}); }
  void advance(std::size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
    line_starting_ = bytes > 0 && source_[at_ - 1] == '\n';
  }
  void skip_spaces() {
    const std::size_t bytes = rest().size() - stripped(rest(), Side::left).size();
    if (bytes > 0) advance(bytes);
  }
  [[nodiscard]] std::size_t spaces_at(std::size_t at) const {
    const std::string_view text = std::string_view(source_).substr(at);
    return text.size() - stripped(text, Side::left).size();
  }

  // The data before a tag that starts with this sign.
  void add_data(std::size_t bytes, char sign, Tag tag) {
    std::string_view text = rest().substr(0, bytes);
    if (sign == '-') {
      text = stripped(text, Side::right);
    } else if (sign != '+' && tag != Tag::output) {
      const std::size_t line_end = text.rfind('\n');
      const std::size_t start = line_end == std::string_view::npos ? 0 : line_end + 1;
      if ((start > 0 || line_starting_) && stripped(text.substr(start), Side::left).empty()) {
        text = text.substr(0, start);
      }
    }
    if (!text.empty()) add(TokenKind::data, std::string(text));
    advance(bytes);
  }

  // Where the next tag starts.
  [[nodiscard]] std::size_t find_tag() const {
    for (std::size_t at = source_.find('{', at_); at != std::string::npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && std::string_view("%{#").find(source_[at + 1]) != std::string_view::npos) return at;
    }
    return std::string::npos;
  }

  void root() {
    const std::size_t tag_at = find_tag();
    if (tag_at == std::string::npos) {
      add(TokenKind::data, std::string(rest()));
      advance(rest().size());
      return;
    }
    const char second = source_[tag_at + 1];
    const Tag tag = second == '%' ? Tag::block : second == '{' ? Tag::output : Tag::comment;
    const char sign = tag_at + 2 < source_.size() ? source_[tag_at + 2] : '\0';
    add_data(tag_at - at_, sign, tag);
    if (tag == Tag::block && raw_block()) return;
    const int opened = line_;
    advance(sign == '-' || sign == '+' ? 3 : 2);
    if (tag == Tag::comment) {
      comment(opened);
    } else {
      add(tag == Tag::block ? TokenKind::block_begin : TokenKind::output_begin);
      expression(tag, opened);
    }
  }

  void comment(int opened) {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) throw syntax_error(opened, "a comment without an end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    advance(end - at_ + 2);
    after_tag(sign);
  }

  // What a tag's end takes away behind it.
  void after_tag(char sign) {
    if (sign == '-') {
      skip_spaces();
    } else if (sign != '+' && rest().starts_with('\n')) {
      advance(1);
    }
  }

  // The length of a tag that holds this word alone; 0 where there is none.
  [[nodiscard]] std::size_t word_tag(std::size_t at, std::string_view word, bool plus_at_end, char& sign) const {
    const std::size_t start = at;
    at += 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at += spaces_at(at);
    if (source_.compare(at, word.size(), word) != 0) return 0;
    at += word.size();
    at += spaces_at(at);
    sign = at < source_.size() ? source_[at] : '\0';
    if (sign == '-' || (plus_at_end && sign == '+')) ++at;
    return source_.compare(at, 2, "%}") == 0 ? at + 2 - start : 0;
  }

  bool raw_block() {
    char sign = '\0';
    const std::size_t length = word_tag(at_, "raw", false, sign);
    if (length == 0) return false;
    const int opened = line_;
    advance(length);
    if (sign == '-') skip_spaces();
    for (std::size_t at = source_.find("{%", at_); at != std::string::npos; at = source_.find("{%", at + 1)) {
      char end_sign = '\0';
      const std::size_t end_length = word_tag(at, "endraw", true, end_sign);
      if (end_length == 0) continue;
      add_data(at - at_, source_[at + 2], Tag::block);
      advance(end_length);
      after_tag(end_sign);
      return true;
    }
    throw syntax_error(opened, "a raw block without an end");
  }

  bool tag_end(Tag tag) {
    const std::string_view end = tag == Tag::block ? "%}" : "}}";
    const bool sign = rest().starts_with('-') || (tag == Tag::block && rest().starts_with('+'));
    if (!rest().substr(sign ? 1 : 0).starts_with(end)) return false;
    const char which = sign ? rest()[0] : '\0';
    add(tag == Tag::block ? TokenKind::block_end : TokenKind::output_end);
    advance(sign ? 3 : 2);
    if (tag == Tag::block || which == '-') after_tag(which);
    return true;
  }

  void expression(Tag tag, int opened) {
    std::string open;  // brackets that are to be closed
    while (at_ < source_.size()) {
      if (open.empty() && tag_end(tag)) return;
      const char c = source_[at_];
      if (const std::size_t spaces = spaces_at(at_); spaces > 0) {
        advance(spaces);
      } else if (is_digit(c)) {
        number();
      } else if (is_name_start(c)) {
        const std::string_view text = rest();
        const auto* end = std::find_if_not(text.begin(), text.end(), is_name_part);
        add(TokenKind::name, std::string(text.begin(), end));
        advance(tokens_.back().text.size());
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        bracket(open, c);
        op();
      }
    }
    throw syntax_error(opened, "a tag without an end");
  }

  void bracket(std::string& open, char c) const {
    static constexpr std::string_view kOpening = "([{";
    static constexpr std::string_view kClosing = ")]}";
    if (const std::size_t i = kOpening.find(c); i != std::string_view::npos) open += kClosing[i];
    if (kClosing.find(c) == std::string_view::npos) return;
    if (open.empty() || open.back() != c) throw syntax_error(line_, fmt::format("'{}' is not expected", c));
    open.pop_back();
  }

  void op() {
    static constexpr std::array<std::string_view, 25> kOperators = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/",
                                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                    ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (const std::string_view text : kOperators) {
      if (!rest().starts_with(text)) continue;
      add(TokenKind::op, std::string(text));
      advance(text.size());
      return;
    }
    throw syntax_error(line_, fmt::format("{} is not expected", shown(rest().substr(0, 1))));
  }

  void string(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) throw syntax_error(line_, "a string without an end");
    const std::string_view body = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    add(TokenKind::string, unescaped_literal(body, line_));
    advance(end + 1 - at_);
  }

  // Digits with single underscores between them; how many bytes.
  template <class IsDigit>
  [[nodiscard]] std::size_t digits(std::size_t at, const IsDigit& is) const {
    const std::size_t start = at;
    while (at < source_.size() &&
           (is(source_[at]) || (source_[at] == '_' && at > start && at + 1 < source_.size() && is(source_[at + 1])))) {
      ++at;
    }
    return at - start;
  }

  void number() {
    if (!(at_ > 0 && source_[at_ - 1] == '.') && real()) return;
    std::size_t length = 0;
    int base = 10;
    const char marker = at_ + 1 < source_.size() ? source_[at_ + 1] : '\0';
    if (source_[at_] == '0' && (marker == 'x' || marker == 'X')) {
      base = 16;
    } else if (source_[at_] == '0' && (marker == 'o' || marker == 'O')) {
      base = 8;
    } else if (source_[at_] == '0' && (marker == 'b' || marker == 'B')) {
      base = 2;
    }
    if (base != 10) {
      std::size_t from = at_ + 2;
      if (from < source_.size() && source_[from] == '_') ++from;
      length = digits(from, [base](char c) {
        const int value = is_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : 99;
        return value < base;
      });
      if (length > 0) length += from - at_;
    }
    if (length == 0) {
      base = 10;
      length = source_[at_] == '0' ? digits(at_, [](char c) { return c == '0'; }) : digits(at_, is_digit);
    }
    std::string text(rest().substr(0, length));
    std::erase(text, '_');
    const std::string_view value = std::string_view(text).substr(base == 10 ? 0 : 2);
    add(TokenKind::integer, text);
    const auto result = std::from_chars(value.data(), value.data() + value.size(), tokens_.back().integer, base);
    if (result.ec != std::errc())
      throw not_supported(fmt::format("the integer {}, beyond 64 bits", shown(text)), line_);
    advance(length);
  }

  bool real() {
    std::size_t end = at_ + digits(at_, is_digit);
    bool is_real = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      end += 1 + digits(end + 1, is_digit);
      is_real = true;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        end = exponent + digits(exponent, is_digit);
        is_real = true;
      }
    }
    if (!is_real) return false;
    std::string text(rest().substr(0, end - at_));
    std::erase(text, '_');
    add(TokenKind::real, text);
    tokens_.back().real = std::strtod(text.c_str(), nullptr);
    advance(end - at_);
    return true;
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Error syntax_error(int line, std::string_view what) {
  return {Status::corrupt, fmt::format("the chat template, line {}: {}", line, what)};
}

std::vector<Token> tokenize(std::string_view source) {
  if (const auto at = first_invalid_utf8(source)) {
    throw Error(Status::corrupt, fmt::format("the chat template is not UTF-8 (byte {})", *at));
  }
  return Lexer(normalized_source(source)).run();
}

}  // namespace qdelta::jinja
