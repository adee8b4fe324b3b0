#include "data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "core/error.h"
#include "data/regex_translate.h"
#include "data/unicode.h"
#include "io/utf8.h"

namespace qdelta {
namespace pcre2 {

template <auto release>
struct Release {
  template <class T>
  void operator()(T* object) const {
    release(object);
  }
};

}  // namespace pcre2

namespace {

using pcre2::Release;

constexpr std::size_t kSmallestStack = std::size_t{32} << 10U;
constexpr std::size_t kLargestStack = std::size_t{16} << 20U;  // for compiled code, in each thread; grows when needed

using MatchData = std::unique_ptr<pcre2_match_data, Release<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Release<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Release<pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Release<pcre2_jit_stack_free>>;

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// What a thread needs to match, whatever the expression.
struct Scratch {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack{pcre2_jit_stack_create(kSmallestStack, kLargestStack, nullptr)};

  Scratch() {
    if (!data || !context) fail(Status::out_of_memory, "no memory to match regular expressions");
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, pcre2::Release<pcre2_code_free>> code;
  bool compiled = false;  // to machine code
  std::string pattern;    // as it was given, for messages
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  const std::string translated = translate_regex(pattern);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) fail(Status::out_of_memory, "no memory to compile a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  std::size_t at = 0;
  code_->pattern = pattern;
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                  PCRE2_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, context.get()));
  if (!code_->code) {
    fail(Status::unsupported, "the regular expression {} is not supported: {}", shown(pattern), message_of(error));
  }
  // Without a just-in-time compiler on this machine it is interpreted, with the same result.
  code_->compiled = pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, std::size_t start, Match& match) const {
  Scratch& mine = scratch();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int result = code_->compiled ? pcre2_jit_match(code_->code.get(), subject, text.size(), start, 0,
                                                       mine.data.get(), mine.context.get())
                                     : pcre2_match(code_->code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK,
                                                   mine.data.get(), mine.context.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    fail(Status::unsupported, "the regular expression {} cannot be matched against a text of {} bytes: {}",
         shown(code_->pattern), text.size(), message_of(result));
  }
  const std::size_t* range = pcre2_get_ovector_pointer(mine.data.get());
  match = {range[0], range[1]};
  return true;
}

std::size_t Regex::character_length(std::string_view text, std::size_t at) {
  return unicode::character_at(text.data() + at).length;
}

}  // namespace qdelta
