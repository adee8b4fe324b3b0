// Needles: the same for the same seed, in their place, and within the length.
#include "eval/needle.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "eval_testing.h"

namespace qdelta::testing {
namespace {

using eval::NeedleMaterial;
using eval::NeedleOptions;
using eval::Question;
using eval::RequestEncoder;

const ByteTokenizer kNeedleBytes;

std::vector<Question> questions(int variant, std::int64_t length, std::int64_t samples = 8, std::uint64_t seed = 42) {
  const RequestEncoder encoder(kNeedleBytes, eval::Bos::on, 2048);
  return needle_questions(eval::builtin_needle_material(1), encoder, {variant, length, samples, seed});
}

TEST(Needles, AreTheSameForTheSameSeed) {
  for (const int variant : {1, 2, 3}) {
    const std::vector<Question> first = questions(variant, 1500);
    const std::vector<Question> again = questions(variant, 1500);
    const std::vector<Question> fewer = questions(variant, 1500, 3);
    std::set<std::string> values;
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(first[i].prompt, again[i].prompt);
      if (i < fewer.size()) {
        EXPECT_EQ(first[i].prompt, fewer[i].prompt);
      }
      values.insert(first[i].answers.front());
    }
    EXPECT_EQ(values.size(), first.size());
    EXPECT_NE(first[0].prompt, questions(variant, 1500, 1, 43)[0].prompt);
  }
}

TEST(Needles, FillTheLengthAndNoMore) {
  for (const int variant : {1, 2, 3}) {
    for (const std::int64_t length : {700, 1024, 3000}) {
      for (const Question& question : questions(variant, length)) {
        const auto tokens = static_cast<std::int64_t>(question.prompt.size()) + 1 + eval::kNeedleAnswerTokens;
        EXPECT_LE(tokens, length);
        EXPECT_GT(tokens, length - (variant == 1 ? 130 : 60)) << variant << " at " << length;  // a line; a word or two
      }
    }
  }
  EXPECT_NE(message_of([] { static_cast<void>(questions(1, 200)); }).find("200"), std::string::npos);
}

TEST(Needles, SayWhatTheyShould) {
  for (const int variant : {1, 2, 3}) {
    std::set<double> depths;
    for (const Question& question : questions(variant, 2000, 40)) {
      const std::string kind = variant == 3 ? "uuid" : "number";
      const auto key = question.about.at("key").get<std::string>();
      const std::string& value = question.answers.front();
      EXPECT_EQ(value.size(), variant == 3 ? 36U : 7U);
      const std::string needle = "One of the special magic " + kind + "s for " + key + " is: " + value + ".";
      EXPECT_NE(question.prompt.find(needle), std::string::npos) << question.prompt;
      EXPECT_EQ(question.prompt.find(value), question.prompt.rfind(value));
      EXPECT_TRUE(question.prompt.starts_with("A special magic " + kind +
                                              " is hidden within the following text. Make sure to memorize it. I will "
                                              "quiz you about the " +
                                              kind + " afterwards.\n"));
      EXPECT_TRUE(question.prompt.ends_with("\nWhat is the special magic " + kind + " for " + key +
                                            " mentioned in the provided text? The special magic " + kind + " for " +
                                            key + " mentioned in the provided text is"));
      depths.insert(question.about.at("depth").get<double>());
    }
    EXPECT_GT(depths.size(), 15U);
  }
}

TEST(Needles, UseTheWordsTheyAreGiven) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("essays"));
  write_file(folder.file("adjectives.txt"), "red\n");
  write_file(folder.file("nouns.txt"), "kite\n");
  EXPECT_NE(message_of([&] { static_cast<void>(eval::read_needle_material(folder.path())); }).find("essays"),
            std::string::npos);
  write_file(folder.file("essays/b.txt"), "Second  file.");
  write_file(folder.file("essays/a.txt"), "First\nfile here. ");
  const NeedleMaterial material = eval::read_needle_material(folder.path());
  EXPECT_EQ(material.words, (std::vector<std::string>{"First", "file", "here.", "Second", "file."}));
  const RequestEncoder encoder(kNeedleBytes, eval::Bos::off, 2048);
  const Question question = needle_questions(material, encoder, {2, 1200, 1, 1}).front();
  EXPECT_EQ(question.about.at("key"), "red-kite");
  // Short essays begin again.
  EXPECT_NE(question.prompt.find("Second file. First file here. Second"), std::string::npos) << question.prompt;
}

// Numbers of lines and words that prepare_niah.py of lm_eval 0.4.13 gives its samples with a tokenizer of bytes that
// adds a begin of text. Its essays are others than our words, which are shorter: see below.
TEST(Needles, HaystacksOfTheHarnessGrowInItsSteps) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> lines{
      {1024, 5}, {2048, 15}, {4096, 25}, {8192, 75}, {16384, 175}};
  const RequestEncoder encoder(kNeedleBytes, eval::Bos::on, 2048);
  const NeedleMaterial material = eval::builtin_needle_material(1);
  NeedleOptions options{1, 0, 3, 42};
  options.haystack = eval::HaystackSize::harness;
  for (const auto& [length, size] : lines) {
    options.length = length;
    for (const Question& question : needle_questions(material, encoder, options)) {
      EXPECT_EQ(question.about.at("haystack"), size) << length;
    }
  }
  // Words: with 500 more the first question and its answer would no longer fit.
  options.length = 9000;
  for (const int variant : {2, 3}) {
    options.variant = variant;
    options.haystack = eval::HaystackSize::longest;
    const auto longest = needle_questions(material, encoder, options).front().about.at("haystack").get<std::int64_t>();
    options.haystack = eval::HaystackSize::harness;
    for (const Question& question : needle_questions(material, encoder, options)) {
      EXPECT_EQ(question.about.at("haystack"), longest / 500 * 500) << longest;
      EXPECT_LE(question.prompt.rfind(" The special magic ") + 1 + eval::kNeedleAnswerTokens, 9000U);
    }
  }
}

TEST(Needles, EssaysOfTheHarnessDoNotBeginAgain) {
  NeedleMaterial material = eval::builtin_needle_material(1);
  material.words.resize(730);
  NeedleOptions options{2, 40'000, 2, 42};
  options.haystack = eval::HaystackSize::harness;
  const RequestEncoder encoder(kNeedleBytes, eval::Bos::on, 2048);
  for (const Question& question : needle_questions(material, encoder, options)) {
    EXPECT_EQ(question.about.at("haystack"), 730);
  }
  // Not even one step: one word remains.
  options.length = 700;
  for (const Question& question : needle_questions(material, encoder, options)) {
    EXPECT_EQ(question.about.at("haystack"), 1);
  }
  EXPECT_NE(message_of([] { static_cast<void>(eval::haystack_size_of("huge")); }).find("longest or harness"),
            std::string::npos);
}

TEST(Needles, SentencesEndAtFullStops) {
  EXPECT_EQ(eval::sentences_of("One. Two! \"Three?\" four e.g. this 3.5 is. (Five.) Six"),
            (std::vector<std::string>{"One.", "Two!", "\"Three?\" four e.g. this 3.5 is.", "(Five.)", "Six"}));
  EXPECT_TRUE(eval::sentences_of(" ").empty());
}

}  // namespace
}  // namespace qdelta::testing
