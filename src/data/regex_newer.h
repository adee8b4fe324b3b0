// Regular expressions as Oniguruma 6.9.10 reads them, which the Hugging Face tokenizers have, written so that the
// installed version, be it older, reads them alike.
#pragma once

#include <string>
#include <string_view>

namespace qdelta {

// Outside of brackets \p{Word} is \w (older versions take it for [\w], which differs at six superscripts and fractions)
// and \X an extended grapheme cluster of Unicode 16.0; all else stays as it is.
[[nodiscard]] std::string for_installed_library(std::string_view pattern);

}  // namespace qdelta
