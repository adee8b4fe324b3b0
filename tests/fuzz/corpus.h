// What a fuzz target is started from. Each says so in its *_corpus.cpp, for plain_main.cpp to run.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qdelta::fuzz {

// Small valid inputs.
[[nodiscard]] std::vector<std::string> seeds();
// Pieces that neither random bytes nor the usual ones of JSON would find.
[[nodiscard]] std::span<const std::string_view> words();

}  // namespace qdelta::fuzz
