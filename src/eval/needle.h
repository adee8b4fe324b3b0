// A needle in a haystack (RULER's single-needle tasks): one sentence with a number or a uuid is put into a long text,
// and the model is asked for it at the end.
//
//   niah_single_1   one line, again and again; the needle is a line too     7-digit number
//   niah_single_2   essays, the needle between two sentences                7-digit number
//   niah_single_3   essays, the needle between two sentences                uuid
//
// The haystack is as long as it can be for prompt and answer to fit the length, found by search; or as long as
// lm-evaluation-harness makes it, which grows it by many words at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/task.h"

namespace qdelta::eval {

// What prompts are made of.
struct NeedleMaterial {
  std::vector<std::string> adjectives, nouns;
  std::vector<std::string> words;  // of the essays, one after the other; they begin again where they end
};
// RULER's: adjectives.txt and nouns.txt, a word on each line, and essays/*.txt.
[[nodiscard]] NeedleMaterial read_needle_material(const std::string& folder);
// Our own, the same for the same seed.
[[nodiscard]] NeedleMaterial builtin_needle_material(std::uint64_t seed);

enum class HaystackSize {
  longest,  // to a word or a line
  // As lm-evaluation-harness: 500 words of essays at a time, or 25 lines (5 below 4096 tokens), as long as the first
  // sample fits with its answer after it. Essays do not begin again. What it measures is the prompt without its last
  // sentence, with which the answer begins.
  harness,
};
// "longest" or "harness".
[[nodiscard]] HaystackSize haystack_size_of(const std::string& name);

struct NeedleOptions {
  int variant = 1;             // 1, 2 or 3 of niah_single_
  std::int64_t length = 1024;  // tokens of prompt and answer
  std::int64_t samples = 500;
  std::uint64_t seed = 42;
  HaystackSize haystack = HaystackSize::longest;
};
constexpr std::int64_t kNeedleAnswerTokens = 128;

// Sample i depends on the options and i alone. Throws where not even the smallest haystack fits the length.
[[nodiscard]] std::vector<Question> needle_questions(const NeedleMaterial& material, const RequestEncoder& encoder,
                                                     const NeedleOptions& options);

// A text cut after ., ! and ?, with the quotation marks and brackets that close there, where white space and something
// other than a small letter follow.
[[nodiscard]] std::vector<std::string> sentences_of(std::string_view text);

}  // namespace qdelta::eval
