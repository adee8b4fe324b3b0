#include "eval/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/random.h"
#include "data/unicode.h"
#include "eval/builtin_words.h"
#include "eval/data_file.h"
#include "eval/python_text.h"
#include "io/untrusted_text.h"

namespace qdelta::eval {
namespace {

constexpr std::string_view kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

void check_text(const std::string& text, const std::string& path) {
  if (const auto at = first_invalid_utf8(text)) fail(Status::corrupt, "{}: not valid UTF-8 at byte {}", path, *at);
}

// Split at white space, without empty words.
void add_words(std::string_view text, std::vector<std::string>& words) {
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const unicode::Character character = unicode::character_at(text.data() + at);
    if (is_python_space(character.code)) {
      end_word();
    } else {
      word += text.substr(at, character.length);
    }
    at += character.length;
  }
  end_word();
}

std::vector<std::string> read_words(const std::string& path) {
  const std::string text = read_whole(path);
  check_text(text, path);
  std::vector<std::string> words;
  add_words(text, words);
  if (words.empty()) fail(Status::corrupt, "{}: there are no words in it", path);
  return words;
}

template <class T>
const T& pick(Random& random, const std::vector<T>& values) {
  return values[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(values.size()) - 1))];
}

// Version 4: random but for six bits.
std::string uuid(Random& random) {
  const std::uint64_t high = (random.bits() & 0xffffffffffff0fffU) | 0x4000U;
  const std::uint64_t low = (random.bits() & 0x3fffffffffffffffU) | 0x8000000000000000U;
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32U, (high >> 16U) & 0xffffU, high & 0xffffU,
                     low >> 48U, low & 0xffffffffffffU);
}

// What chance decides about a sample, before the haystack has its size.
struct Needle {
  std::string key, value;
  double depth = 0;  // where in the haystack, from 0 to 1
};

Needle needle_of(const NeedleMaterial& material, const NeedleOptions& options, std::int64_t index) {
  Random random(options.seed ^ (static_cast<std::uint64_t>(options.variant) << 56U) ^
                (static_cast<std::uint64_t>(options.length) << 32U) ^ static_cast<std::uint64_t>(index));
  for (int i = 0; i < 4; ++i) random.bits();  // neighbouring seeds part
  Needle needle;
  needle.key = pick(random, material.adjectives) + "-" + pick(random, material.nouns);
  needle.value = options.variant == 3 ? uuid(random) : std::to_string(random.integer(1'000'000, 9'999'999));
  if (options.variant == 1) {
    needle.depth = random.uniform();
  } else {
    // 40 percentages from 0 to 100, rounded to whole ones.
    needle.depth = std::nearbyint(100.0 * static_cast<double>(random.integer(0, 39)) / 39.0) / 100.0;
  }
  return needle;
}

std::string haystack_of(const NeedleMaterial& material, const Needle& needle, const std::string& sentence, int variant,
                        std::int64_t size) {
  std::vector<std::string> parts;
  std::string_view between = " ";
  if (variant == 1) {
    parts.assign(static_cast<std::size_t>(size), std::string(kNoise));
    between = "\n";
  } else {
    std::string text;
    for (std::int64_t i = 0; i < size; ++i) {
      if (i > 0) text += ' ';
      text += material.words[static_cast<std::size_t>(i) % material.words.size()];
    }
    parts = sentences_of(text);
  }
  // Among lines it stands before one of them; among sentences it may also stand after the last.
  auto at = static_cast<std::size_t>(static_cast<double>(parts.size()) * needle.depth);
  at = std::min(at, parts.size());
  parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(at), sentence);
  return fmt::format("{}", fmt::join(parts, between));
}

// A question in two parts: all up to its end, and the beginning of the answer.
struct Prompt {
  std::string text, beginning;
};

Prompt prompt_of(const NeedleMaterial& material, const Needle& needle, int variant, std::int64_t size) {
  const std::string kind = variant == 3 ? "uuid" : "number";
  const std::string sentence =
      fmt::format("One of the special magic {}s for {} is: {}.", kind, needle.key, needle.value);
  return {fmt::format("A special magic {0} is hidden within the following text. Make sure to memorize it. I will quiz "
                      "you about the {0} afterwards.\n{1}\nWhat is the special magic {0} for {2} mentioned in the "
                      "provided text?",
                      kind, haystack_of(material, needle, sentence, variant, size), needle.key),
          fmt::format(" The special magic {} for {} mentioned in the provided text is", kind, needle.key)};
}

// Makes the samples of one task and length, each with a haystack that fits.
class Samples {
 public:
  Samples(const NeedleMaterial& material, const RequestEncoder& encoder, const NeedleOptions& options)
      : material_(material), encoder_(encoder), options_(options) {}

  [[nodiscard]] std::vector<Question> all() const {
    const bool harness = options_.haystack == HaystackSize::harness;
    const std::int64_t step = harness ? harness_step() : 1;
    const std::int64_t most = harness ? harness_size(step) : longest_size();
    std::vector<Question> questions;
    for (std::int64_t index = 0; index < options_.samples; ++index) {
      const Needle needle = needle_of(material_, options_, index);
      std::int64_t size = most;  // of the first; others may need a little less
      Prompt prompt = prompt_with(needle, size);
      while (!fits(prompt) && size > step) {
        size -= step;
        prompt = prompt_with(needle, size);
      }
      if (!fits(prompt)) {
        fail(Status::invalid_argument, "niah_single_{}: sample {} does not fit a length of {} tokens", options_.variant,
             index, options_.length);
      }
      Question question;
      question.prompt = prompt.text + prompt.beginning;
      question.answers = {needle.value};
      question.about = {{"key", needle.key}, {"depth", needle.depth}, {"haystack", size}};
      questions.push_back(std::move(question));
    }
    return questions;
  }

 private:
  [[nodiscard]] std::int64_t tokens_of(const std::string& text) const {
    return static_cast<std::int64_t>(encoder_.encode(text).size());
  }
  [[nodiscard]] bool fits(const Prompt& prompt) const {
    const bool harness = options_.haystack == HaystackSize::harness;
    return tokens_of(harness ? prompt.text : prompt.text + prompt.beginning) + kNeedleAnswerTokens <= options_.length;
  }
  [[nodiscard]] Prompt prompt_with(const Needle& needle, std::int64_t size) const {
    return prompt_of(material_, needle, options_.variant, size);
  }
  [[nodiscard]] Prompt first_with(std::int64_t size) const {
    return prompt_with(needle_of(material_, options_, 0), size);
  }

  // The largest haystack for the first sample: doubled until it no longer fits, then by halves.
  [[nodiscard]] std::int64_t longest_size() const {
    if (!fits(first_with(1))) {
      fail(Status::invalid_argument,
           "niah_single_{}: a length of {} tokens has no room for the question and {} tokens of answer",
           options_.variant, options_.length, kNeedleAnswerTokens);
    }
    std::int64_t low = 1;
    std::int64_t high = 2;
    while (high <= options_.length && fits(first_with(high))) {
      low = high;
      high *= 2;
    }
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (fits(first_with(middle)) ? low : high) = middle;
    }
    return low;
  }

  [[nodiscard]] std::int64_t harness_step() const {
    constexpr std::int64_t kWords = 500, kLines = 25, kFewLines = 5, kLong = 4096;
    if (options_.variant != 1) return kWords;
    return options_.length < kLong ? kFewLines : kLines;
  }
  [[nodiscard]] std::int64_t harness_size(std::int64_t step) const {
    const bool essays = options_.variant != 1;
    const std::int64_t most = essays ? static_cast<std::int64_t>(material_.words.size()) : options_.length;
    const std::string answer = needle_of(material_, options_, 0).value;
    for (std::int64_t size = step;; size += step) {
      const std::int64_t tokens = tokens_of(first_with(std::min(size, most)).text + answer) + kNeedleAnswerTokens;
      if (tokens > options_.length) return std::max<std::int64_t>(size - step, 1);
      if (size > most) return most;
      if (tokens == options_.length) return std::min(size + step, most);  // the harness looks no further, but goes on
    }
  }

  const NeedleMaterial& material_;
  const RequestEncoder& encoder_;
  const NeedleOptions& options_;
};

}  // namespace

HaystackSize haystack_size_of(const std::string& name) {
  require(name == "longest" || name == "harness", "--haystack is '{}', expected longest or harness", name);
  return name == "harness" ? HaystackSize::harness : HaystackSize::longest;
}

std::vector<std::string> sentences_of(std::string_view text) {
  constexpr std::string_view kClosing = "\"')]";
  std::vector<std::string> sentences;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '.' && text[at] != '!' && text[at] != '?') continue;
    std::size_t end = at + 1;
    while (end < text.size() && kClosing.find(text[end]) != std::string_view::npos) ++end;
    std::size_t next = end;
    while (next < text.size() && (text[next] == ' ' || text[next] == '\n' || text[next] == '\t')) ++next;
    if (next == end || next == text.size() || (text[next] >= 'a' && text[next] <= 'z')) continue;
    sentences.emplace_back(text.substr(begin, end - begin));
    begin = next;
    at = next - 1;
  }
  if (const std::string_view rest = stripped(text.substr(begin)); !rest.empty()) sentences.emplace_back(rest);
  return sentences;
}

NeedleMaterial read_needle_material(const std::string& folder) {
  namespace fs = std::filesystem;
  NeedleMaterial material;
  material.adjectives = read_words((fs::path(folder) / "adjectives.txt").string());
  material.nouns = read_words((fs::path(folder) / "nouns.txt").string());
  std::set<std::string> essays;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(folder) / "essays", error)) {
    if (entry.path().extension() == ".txt") essays.insert(entry.path().string());
  }
  for (const std::string& path : essays) {
    const std::string text = read_whole(path);
    check_text(text, path);
    add_words(text, material.words);
  }
  if (material.words.empty()) fail(Status::io, "{}/essays: there are no .txt files with words in it", folder);
  return material;
}

NeedleMaterial builtin_needle_material(std::uint64_t seed) {
  NeedleMaterial material;
  material.adjectives = builtin_adjectives();
  material.nouns = builtin_nouns();
  constexpr int kSentences = 4000;
  Random random(seed);
  for (int i = 0; i < kSentences; ++i) add_words(builtin_sentence(random), material.words);
  return material;
}

std::vector<Question> needle_questions(const NeedleMaterial& material, const RequestEncoder& encoder,
                                       const NeedleOptions& options) {
  require(options.length > 0 && options.samples > 0, "needles need a length and a number of samples above 0");
  return Samples(material, encoder, options).all();
}

}  // namespace qdelta::eval
