// Words and sentences for needles and haystacks where no lists are given.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/random.h"

namespace qdelta::eval {

[[nodiscard]] const std::vector<std::string>& builtin_adjectives();
[[nodiscard]] const std::vector<std::string>& builtin_nouns();
// An English sentence out of parts put together by chance: no essay, but text that does not repeat itself soon.
[[nodiscard]] std::string builtin_sentence(Random& random);

}  // namespace qdelta::eval
