// UTF-8 as Oniguruma sees it, with the character classes of Unicode 16.0, which the Hugging Face tokenizers have,
// whatever version the installed library knows: general categories, scripts, POSIX classes, \w, \d and \s. Other
// properties are refused. Letters regardless of case (?i) are the library's own; for \X see regex_newer.h.
#pragma once

#define ONIG_ESCAPE_UCHAR_COLLISION  // UChar is ICU's
#include <oniguruma.h>

namespace qdelta {

[[nodiscard]] OnigEncoding utf8_of_unicode_16();

}  // namespace qdelta
