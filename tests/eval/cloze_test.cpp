// Cloze prompts of each data set, and the window around an answer.
#include "eval/cloze.h"

#include <gtest/gtest.h>

#include "eval_testing.h"

namespace qdelta::testing {
namespace {

using eval::ClozeKind;
using eval::ClozeStyle;
using eval::Question;
using eval::RequestEncoder;

const ByteTokenizer kBytes;

std::vector<Question> questions(const std::string& json, const ClozeStyle& style, std::int64_t length = 2048) {
  const RequestEncoder encoder(kBytes, eval::Bos::off, 2048);
  return cloze_questions({record_of(json)}, style, encoder, length);
}

TEST(Cloze, Prompts) {
  const auto prompt = [](const std::string& json, ClozeKind kind) { return questions(json, {kind, false})[0].prompt; };
  EXPECT_EQ(prompt(R"({"text": " The mill stands at the ", "value": "river"})", ClozeKind::squad),
            "The mill stands at the");
  EXPECT_EQ(prompt(R"({"text": "A report. device name: Foo. Device Name:", "key": "device Name", "value": "Foo"})",
                   ClozeKind::fda),
            "A report. device name: Foo. Device Name:");
  EXPECT_EQ(prompt(R"({"text": "Page. Year: 1999.\n\nSummary of information above...\nYear:", "key": "year",
                       "value": "1999"})",
                   ClozeKind::swde),
            "Page. Year: 1999. Year:");
  EXPECT_EQ(prompt(R"({"context": "[DOC] Ann met[PAR] Eve.", "question": " who met Eve? ", "answers": ["Ann"]})",
                   ClozeKind::question_answering),
            "Ann met Eve. who met Eve?");
  EXPECT_EQ(prompt(R"({"passage": "Ann ran 5 miles", "question": "how far?", "answers_spans": {"spans": ["5"]}})",
                   ClozeKind::question_answering),
            "Ann ran 5 miles. how far?");
  EXPECT_EQ(prompt(R"({"context": "Ann ran.", "question": "who?", "answers": {"text": ["Ann"], "answer_start": [0]}})",
                   ClozeKind::squad),
            "Ann ran. who?");
}

TEST(Cloze, TriviaQasOwnLayout) {
  const std::vector<Question> found = questions(
      R"({"question": "Who?", "answer": {"value": "Ann Lee", "aliases": ["Ann", "Lee"]},
          "entity_pages": {"title": ["t"], "wiki_context": ["Ann Lee sang.", "She left."]},
          "search_results": {"search_context": ["A third"]}})",
      {ClozeKind::question_answering, true});
  EXPECT_EQ(found.at(0).prompt, "Ann Lee sang.\nShe left.\nA third. Who?");
  EXPECT_EQ(found.at(0).answers, (std::vector<std::string>{"Ann Lee", "Ann", "Lee"}));
}

TEST(Cloze, QuestionsWithoutADocumentAreNamed) {
  EXPECT_NE(
      message_of([] {
        static_cast<void>(questions(R"({"question": "who?", "answer": ["Ann"]})", {ClozeKind::question_answering}));
      }).find("no document"),
      std::string::npos);
}

TEST(Cloze, SquadsOwnFile) {
  const std::vector<Question> found = questions(
      R"({"data": [{"title": "t", "paragraphs": [{"context": "Ann ran.", "qas": [
            {"question": "Who ran?", "answers": [{"text": "Ann", "answer_start": 0}, {"text": "ann", "answer_start": 0}]},
            {"question": "Why?", "answers": [], "is_impossible": true}]}]}]})",
      {});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].prompt, "Ann ran. Who ran?");
  EXPECT_EQ(found[0].answers, (std::vector<std::string>{"Ann", "ann"}));
}

TEST(Cloze, CutsAroundTheAnswer) {
  const std::string before(300, 'a');
  const std::string after(300, 'b');
  const std::string json = R"({"text": ")" + before + "ANSWER" + after + R"(", "value": "answer"})";
  // 150 tokens less the room: half before the answer, half from it on.
  EXPECT_EQ(questions(json, {}, 150)[0].prompt, std::string(50, 'a') + "ANSWER" + std::string(44, 'b'));
  EXPECT_EQ(questions(json, {ClozeKind::squad, true}, 150)[0].prompt, std::string(100, 'a'));
  const std::string missing = R"({"text": ")" + before + after + R"(", "value": "answer"})";
  EXPECT_EQ(questions(missing, {}, 150)[0].prompt, std::string(50, 'b'));
  // The key counts as well where there is one.
  const std::string keyed = R"({"text": ")" + before + "KEY" + after + R"( answer", "value": "answer", "key": "key"})";
  EXPECT_TRUE(questions(keyed, {ClozeKind::fda, false}, 150)[0].prompt.starts_with(std::string(50, 'a') + "KEYbb"));
  EXPECT_THROW(static_cast<void>(questions(json, {}, 50)), Error);
}

TEST(Cloze, DamageIsNamed) {
  for (const char* bad :
       {R"({"text": "x"})", R"({"text": 3, "value": "x"})", R"({"question": "x", "answers": ["y"]})",
        R"({"context": "x", "question": "q", "answers": []})", R"({"context": "x", "question": " ", "answers": ["y"]})",
        R"({"text": "x", "value": " "})", R"({"data": [{"paragraphs": 3}]})"}) {
    EXPECT_NE(message_of([&] { static_cast<void>(questions(bad, {})); }).find("file.jsonl: line 1"), std::string::npos)
        << bad;
  }
}

}  // namespace
}  // namespace qdelta::testing
