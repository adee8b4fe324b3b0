// Every layout of every data set, and what is said of files that are none of them.
#include <gtest/gtest.h>

#include "eval/data_file.h"
#include "eval/lambada.h"
#include "eval/multiple_choice.h"
#include "eval/wikitext.h"
#include "eval_testing.h"

namespace qdelta::testing {
namespace {

using namespace eval;  // NOLINT(google-build-using-namespace): most names here

void expect_question(const ChoiceQuestion& got, const std::string& context, const std::vector<std::string>& choices,
                     std::int64_t gold) {
  EXPECT_EQ(got.gold, gold);
  EXPECT_EQ(got.choices, choices);
  ASSERT_EQ(got.requests.size(), choices.size());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(got.requests[i].context, context);
    EXPECT_EQ(got.requests[i].continuation, " " + choices[i]);
  }
}

ChoiceQuestion ask(ChoiceQuestion (*question_of)(const JsonAt&), const std::string& json) {
  const Record record = record_of(json);
  return question_of(record.at());
}

std::string complaint(ChoiceQuestion (*question_of)(const JsonAt&), const std::string& json) {
  return message_of([&] { static_cast<void>(ask(question_of, json)); });
}

TEST(Layouts, Arc) {
  const std::string context = "Question: Why?\nAnswer:";
  expect_question(ask(arc_question, R"({"id": "a", "question": "Why?", "choices": {"text": ["x", "y", "z"],
                      "label": ["A", "B", "C"]}, "answerKey": "C"})"),
                  context, {"x", "y", "z"}, 2);
  expect_question(ask(arc_question, R"({"question": {"stem": "Why?", "choices": [{"text": "x", "label": "1"},
                      {"text": "y", "label": "2"}]}, "answerKey": "1"})"),
                  context, {"x", "y"}, 0);
  expect_question(ask(arc_question, R"({"query": "Question: Why?", "choices": ["x", "y"], "gold": 1})"), context,
                  {"x", "y"}, 1);
  EXPECT_NE(complaint(arc_question, R"({"query": "Question: Why?", "choices": ["x", "y"], "gold": 2})").find("0 to 1"),
            std::string::npos);
  EXPECT_NE(complaint(arc_question, R"({"question": "Why?", "choices": {"text": ["x", "y"], "label": ["A", "B"]},
                      "answerKey": "E"})")
                .find("answerKey"),
            std::string::npos);
  EXPECT_NE(complaint(arc_question, R"({"question": "Why?"})").find("file.jsonl: line 1"), std::string::npos);
}

TEST(Layouts, OpenBookQa) {
  expect_question(ask(openbookqa_question, R"({"question_stem": "The sun", "choices": {"text": ["x", "y"],
                      "label": ["A", "B"]}, "answerKey": " B"})"),
                  "The sun", {"x", "y"}, 1);
  expect_question(ask(openbookqa_question, R"({"question": {"stem": "The sun", "choices": [{"text": "x", "label": "A"},
                      {"text": "y", "label": "B"}]}, "answerKey": "A"})"),
                  "The sun", {"x", "y"}, 0);
  expect_question(ask(openbookqa_question, R"({"query": "The sun", "choices": ["x", "y"], "gold": 1})"), "The sun",
                  {"x", "y"}, 1);
  EXPECT_NE(complaint(openbookqa_question, R"({"query": "The sun", "choices": ["x", "y"], "gold": 2})").find("0 to 1"),
            std::string::npos);
}

TEST(Layouts, HellaSwag) {
  expect_question(
      ask(hellaswag_question, R"({"activity_label": "Cooking", "ctx_a": "A man [substeps] stirs.", "ctx_b": "he TASTES",
          "endings": [" it. [header] Done", "two  spaces [title] more"], "label": "1"})"),
      "Cooking: A man stirs. He tastes", {"it. Done", "two spaces. more"}, 1);
  EXPECT_EQ(hellaswag_cleaned("a [b\nc] [d] e]"), "a [b\nc] e]");
  EXPECT_EQ(hellaswag_cleaned("a [b"), "a [b");
  EXPECT_NE(complaint(hellaswag_question, R"({"activity_label": "C", "ctx_a": "A", "ctx_b": "b",
                      "endings": ["x", "y"], "label": ""})")
                .find("label"),
            std::string::npos);
}

TEST(Layouts, Piqa) {
  expect_question(ask(piqa_question, R"({"goal": "Open a jar", "sol1": "twist", "sol2": "shout", "label": 0})"),
                  "Question: Open a jar\nAnswer:", {"twist", "shout"}, 0);
  const TemporaryFolder folder;
  const std::string path = folder.file("piqa_valid.jsonl");
  write_file(
      path,
      "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}\n{\"goal\": \"h\", \"sol1\": \"a\", \"sol2\": \"b\"}\n");
  std::vector<Record> records = read_records(path);
  EXPECT_NE(message_of([&] { add_piqa_labels(records, path); }).find("piqa_valid_labels.txt"), std::string::npos);
  for (const char* bad : {"1\n", "1\n2\n", "1\n0\n1\n", "x\n0\n"}) {
    write_file(folder.file("piqa_valid_labels.txt"), bad);
    EXPECT_NE(message_of([&] { add_piqa_labels(records, path); }).find("piqa_valid_labels.txt"), std::string::npos)
        << bad;
    records = read_records(path);
  }
  write_file(folder.file("piqa_valid_labels.txt"), "1\n0\n");
  add_piqa_labels(records, path);
  EXPECT_EQ(piqa_question(records[0].at()).gold, 1);
  EXPECT_EQ(piqa_question(records[1].at()).gold, 0);
}

TEST(Layouts, WinoGrande) {
  for (const char* json : {R"({"sentence": "Ann thanked Eve because _ had helped.", "option1": "Ann", "option2": "Eve",
                               "answer": "2"})",
                           R"({"context_options": ["Ann thanked Eve because Ann", "Ann thanked Eve because Eve"],
                               "continuation": "had helped.", "gold": 1})"}) {
    const ChoiceQuestion question = ask(winogrande_question, json);
    ASSERT_EQ(question.requests.size(), 2U);
    EXPECT_EQ(question.requests[0].context, "Ann thanked Eve because Ann");
    EXPECT_EQ(question.requests[1].context, "Ann thanked Eve because Eve");
    EXPECT_EQ(question.requests[0].continuation, " had helped.");
    EXPECT_EQ(question.requests[1].continuation, " had helped.");
    EXPECT_EQ(question.gold, 1);
  }
  EXPECT_NE(complaint(winogrande_question, R"({"sentence": "none", "option1": "a", "option2": "b", "answer": "1"})")
                .find("sentence"),
            std::string::npos);
  EXPECT_NE(complaint(winogrande_question, R"({"sentence": "_", "option1": "a", "option2": "b", "answer": ""})")
                .find("answer"),
            std::string::npos);
}

TEST(Layouts, BoolQ) {
  const std::string context = "Water is wet.\nQuestion: is water wet?\nAnswer:";
  expect_question(ask(boolq_question, R"({"passage": "Water is wet.", "question": "is water wet", "label": 1})"),
                  context, {"no", "yes"}, 1);
  expect_question(ask(boolq_question, R"({"passage": "Water is wet.", "question": "is water wet", "answer": false})"),
                  context, {"no", "yes"}, 0);
}

TEST(Layouts, Lambada) {
  const ByteTokenizer tokenizer;
  const RequestEncoder bytes(tokenizer, Bos::off, 100);
  const LambadaTask task("lambada_openai", bytes, std::vector{record_of(R"({"text": "he said  \"no\""})")});
  const nlohmann::json shown = task.description(0);
  EXPECT_EQ(shown["texts"][0][0], "he said ");
  EXPECT_EQ(shown["texts"][0][1], " \"no\"");
  EXPECT_EQ(shown["requests"][0]["context_tokens"], bytes_of("he said"));
  EXPECT_EQ(shown["requests"][0]["continuation_tokens"], bytes_of("  \"no\""));
  EXPECT_NE(message_of([&] { LambadaTask("l", bytes, std::vector{record_of(R"({"text": "word"})")}); }).find("line 1"),
            std::string::npos);
}

TEST(Layouts, WikitextPages) {
  const std::string text =
      " \n = One = \n \n Text of one . \n \n = = Part = = \n more \n = Two = \n text \n = = = Deep = = = \n end \n";
  const std::vector<std::string> pages = wikitext_pages(text);
  ASSERT_EQ(pages.size(), 2U);
  EXPECT_EQ(pages[0], " = One = \n \n Text of one . \n \n = = Part = = \n more ");
  EXPECT_EQ(pages[1], " = Two = \n text \n = = = Deep = = = \n end \n");
  const TemporaryFolder folder;
  write_file(folder.file("w.jsonl"), "{\"page\": \" = One = \\n x\"}\n");
  EXPECT_EQ(read_wikitext(folder.file("w.jsonl")), std::vector<std::string>{" = One = \n x"});
  // Line by line, as the Hugging Face data set has it.
  write_file(folder.file("lines.jsonl"), R"({"text": ""}
{"text": " = One = \n"}
{"text": " x \n"}
{"text": " = Two = \n"}
{"text": " y \n"})");
  EXPECT_EQ(read_wikitext(folder.file("lines.jsonl")),
            (std::vector<std::string>{" = One = \n x ", " = Two = \n y \n"}));
  write_file(folder.file("w.txt"), " \n");
  EXPECT_NE(message_of([&] { static_cast<void>(read_wikitext(folder.file("w.txt"))); }).find("w.txt"),
            std::string::npos);
  write_file(folder.file("w.txt"), " = One = \n \xff");
  EXPECT_NE(message_of([&] { static_cast<void>(read_wikitext(folder.file("w.txt"))); }).find("byte 11"),
            std::string::npos);
}

TEST(Layouts, WikitextMended) {
  EXPECT_EQ(wikitext_mended(" = One = \n He 's a guest @-@ star ( 1 @,@ 200 @.@ 5 ) , said \" yes \" . \n"),
            " = One =\nHe's a guest-star (1,200.5), said \"yes\".\n");
  EXPECT_EQ(wikitext_mended("the boys ' hats ; N men ; 5 \u00b0 C ; [ a ] { b }"),
            "the boys' hats; 1 men; 5\u00b0C; [a] {b}");
  EXPECT_EQ(wikitext_mended(" = = = = Four = = = = "), " ==== Four ==== ");
  EXPECT_EQ(wikitext_mended("/' 5/ and /' x/"), "/'[0-9]/ and /' x/");
  EXPECT_EQ(wikitext_mended("( open"), "( open");
}

TEST(DataFiles, LinesArraysAndCompressed) {
  const TemporaryFolder folder;
  write_file(folder.file("a.jsonl"), "\xef\xbb\xbf{\"a\": 1}\r\n\n  {\"a\": 2}");
  EXPECT_EQ(read_records(folder.file("a.jsonl")).size(), 2U);
  EXPECT_EQ(read_records(folder.file("a.jsonl"))[1].label, folder.file("a.jsonl") + ": line 3");
  write_file(folder.file("b.json"), "[{\"a\": 1},\n {\"a\": 2}]");
  EXPECT_EQ(read_records(folder.file("b.json")).size(), 2U);
  write_file(folder.file("c.json"), "{\n\"data\": []\n}");
  EXPECT_EQ(read_records(folder.file("c.json")).size(), 1U);
  write_file(folder.file("d.json"), "{\"a\": 1}\n{\"a\": 2}\n");  // lines, whatever it is called
  EXPECT_EQ(read_records(folder.file("d.json")).size(), 2U);
}

TEST(DataFiles, AreFoundByTheirNames) {
  const TemporaryFolder folder;
  write_file(folder.file("piqa_valid.jsonl"), "{}");
  EXPECT_EQ(find_data(folder.path(), "piqa", {"piqa", "piqa_valid"}), folder.file("piqa_valid.jsonl"));
  const std::string message = message_of([&] {
    static_cast<void>(find_data(folder.path(), "boolq", {"boolq", "boolq_val"}));
  });
  EXPECT_NE(message.find("boolq_val.jsonl"), std::string::npos) << message;
  EXPECT_NE(message_of([&] { static_cast<void>(find_data("", "boolq", {"boolq"})); }).find("--data"),
            std::string::npos);
}

// Damaged lines are refused with their place, and nothing else happens.
TEST(DataFiles, DamageIsNamed) {
  const TemporaryFolder folder;
  const std::string good = R"({"goal": "g", "sol1": "a", "sol2": "b", "label": 1})";
  const std::string path = folder.file("x.jsonl");
  for (const char* bad :
       {"{", "[1]", "3", "\"x\"", "{\"a\": }", "{\"a\": 1} x", "\xff", "null", "{\"a\": \"\\ud800\"}"}) {
    write_file(path, good + "\n" + bad + "\n" + good + "\n");
    const std::string message = message_of([&] { static_cast<void>(read_records(path)); });
    EXPECT_NE(message.find("x.jsonl: line 2"), std::string::npos) << bad << ": " << message;
  }
  write_file(path, "\n \n");
  EXPECT_NE(message_of([&] { static_cast<void>(read_records(path)); }).find("no examples"), std::string::npos);
  // Any single byte changed: read or refused, never anything else.
  Random random(7);
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string text = good;
    text[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(text.size()) - 1))] =
        static_cast<char>(random.integer(0, 255));
    write_file(path, text);
    refused += message_of([&] {
                 for (const Record& record : read_records(path)) static_cast<void>(piqa_question(record.at()));
               }).empty()
                   ? 0
                   : 1;
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace qdelta::testing
