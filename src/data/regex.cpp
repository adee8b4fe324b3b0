#include "data/regex.h"

#include <array>
#include <limits>

#include "core/error.h"
#include "data/regex_newer.h"
#include "data/regex_unicode.h"
#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr unsigned kDeepestGroups = 100;                 // nested groups and classes; the parser calls itself
constexpr unsigned long kMostRetriesInMatch = 10000000;  // Oniguruma's default: some tenths of a second
constexpr unsigned long kMostRetriesPerByte = 100;       // beyond that, over all the places where a match may start
constexpr unsigned kLargestStack = 1U << 24U;  // places to go back to, 40 bytes each; a run needs one per character
constexpr unsigned long kMostCalls = 1000000;  // of groups by themselves: \g<name>

void initialize() {
  static const bool done = [] {
    OnigEncoding encoding = utf8_of_unicode_16();
    onig_initialize(&encoding, 1);
    onig_set_parse_depth_limit(kDeepestGroups);
    onig_set_subexp_call_limit_in_search(kMostCalls);
    return true;
  }();
  static_cast<void>(done);
}

std::string message_of(int error, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length =
      info != nullptr ? onig_error_code_to_str(text.data(), error, info) : onig_error_code_to_str(text.data(), error);
  return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(length)};
}

using Compiled = std::unique_ptr<OnigRegexType, void (*)(OnigRegex)>;

Compiled compile(std::string_view pattern) {
  const auto* begin = reinterpret_cast<const OnigUChar*>(pattern.data());
  OnigRegex code = nullptr;
  OnigErrorInfo info{};
  const int error = onig_new(&code, begin, begin + pattern.size(), ONIG_OPTION_NONE, utf8_of_unicode_16(),
                             ONIG_SYNTAX_ONIGURUMA, &info);
  if (error == ONIG_NORMAL) return {code, onig_free};
  if (error == ONIGERR_MEMORY) fail(Status::out_of_memory, "no memory to compile a regular expression");
  // What is an expression, but not one that we take; -100 and below are errors of syntax.
  const bool refused = error == ONIGERR_INVALID_CHAR_PROPERTY_NAME || error == ONIGERR_INVALID_POSIX_BRACKET_TYPE ||
                       error == ONIGERR_TOO_BIG_NUMBER_FOR_REPEAT_RANGE || error > -100;
  if (error == ONIGERR_PARSE_DEPTH_LIMIT_OVER) {
    fail(Status::unsupported, "the regular expression {} is nested more than {} levels deep", shown(pattern),
         kDeepestGroups);
  }
  fail(refused ? Status::unsupported : Status::corrupt, "the regular expression {} is not {}: {}", shown(pattern),
       refused ? "supported" : "valid", message_of(error, &info));
}

// At the end of every match the library copies its stack, 6 KB, unless the expression has more than 50 registers.
// Groups that never match, behind the expression's own, are two registers each: they halve the time of GPT-2's
// expression.
std::string with_unused_groups(std::string_view pattern) {
  std::string text(pattern);
  for (int i = 0; i < 25; ++i) text += "(){0}";
  return text;
}

// What a thread needs to match, whatever the expression.
struct Scratch {
  std::unique_ptr<OnigMatchParam, void (*)(OnigMatchParam*)> limits{onig_new_match_param(), onig_free_match_param};
  std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region{onig_region_new(),
                                                            [](OnigRegion* used) { onig_region_free(used, 1); }};

  Scratch() {
    if (!limits || !region) fail(Status::out_of_memory, "no memory to match regular expressions");
    onig_initialize_match_param(limits.get());
    onig_set_match_stack_limit_size_of_match_param(limits.get(), kLargestStack);
    onig_set_retry_limit_in_match_of_match_param(limits.get(), kMostRetriesInMatch);
  }
};

Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

}  // namespace

struct Regex::Code {
  Compiled compiled;
  std::string pattern;      // for messages
  bool starts_where_tried;  // a match does: there is no \K
};

Regex::Regex(std::string_view pattern) {
  if (first_invalid_utf8(pattern)) {
    fail(Status::corrupt, "the regular expression {} is not valid UTF-8", shown(pattern));
  }
  initialize();
  // By itself first: no part of it may run on into the groups, and messages show it as it was given.
  compile(pattern);
  code_ = std::make_unique<Code>(Code{.compiled = compile(with_unused_groups(for_installed_library(pattern))),
                                      .pattern = std::string(pattern),
                                      .starts_where_tried = pattern.find("\\K") == std::string_view::npos});
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, std::size_t start, Match& match) const {
  const auto refuse = [&](std::string_view why) {
    fail(Status::unsupported, "the regular expression {} cannot be matched against a text of {} bytes: {}",
         shown(code_->pattern), text.size(), why);
  };
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) refuse("at most 2 GiB at once");
  Scratch& mine = scratch();
  OnigRegexType* const compiled = code_->compiled.get();
  const auto* begin = reinterpret_cast<const OnigUChar*>(text.data());
  const OnigUChar* end = begin + text.size();
  // Most expressions match right here, and then nothing but the length is needed.
  int result = ONIG_MISMATCH;
  if (code_->starts_where_tried) {
    result = onig_match_with_param(compiled, begin, end, begin + start, nullptr, ONIG_OPTION_NONE, mine.limits.get());
  }
  if (result >= 0) {
    match = {start, start + static_cast<std::size_t>(result)};
    return true;
  }
  if (result == ONIG_MISMATCH) {
    onig_set_retry_limit_in_search_of_match_param(mine.limits.get(),
                                                  kMostRetriesInMatch + kMostRetriesPerByte * (text.size() - start));
    result = onig_search_with_param(compiled, begin, end, begin + start, end, mine.region.get(), ONIG_OPTION_NONE,
                                    mine.limits.get());
  }
  if (result == ONIG_MISMATCH) return false;
  if (result == ONIGERR_MEMORY) fail(Status::out_of_memory, "no memory to match a regular expression");
  if (result < 0) refuse(message_of(result));
  match = {static_cast<std::size_t>(mine.region->beg[0]), static_cast<std::size_t>(mine.region->end[0])};
  return true;
}

std::size_t Regex::character_length(std::string_view text, std::size_t at) {
  return unicode::character_at(text.data() + at).length;
}

}  // namespace qdelta
