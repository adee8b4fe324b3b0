// Regular expressions of tokenizer.json files are in Oniguruma's dialect; this turns them into PCRE2's.
//
// The two agree on most of the syntax, and quietly disagree on the rest: \s, \w, \h, {,n}, nested and intersected
// classes, scripts, ^ and $, the version of Unicode. Everything is therefore parsed and written anew, each class
// spelled out; and what is not known to mean the same in both is refused.
#pragma once

#include <string>
#include <string_view>

namespace qdelta {

// To be compiled with PCRE2_UTF and PCRE2_MULTILINE. Throws Error(unsupported) with the part that is not supported, and
// Error(corrupt) where the expression is not one.
[[nodiscard]] std::string translate_regex(std::string_view pattern);

}  // namespace qdelta
