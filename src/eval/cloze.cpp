#include "eval/cloze.h"

#include <algorithm>

#include "data/unicode.h"
#include "eval/python_text.h"

namespace qdelta::eval {
namespace {

// A record in whatever layout it came.
struct Cloze {
  std::string document;
  std::string question;              // empty: the document ends with it
  std::string key;                   // swde and fda
  std::vector<std::string> answers;  // at least one
};

std::vector<std::string> answers_of(const JsonAt& record) {
  std::vector<std::string> answers;
  if (record.has("value")) {
    answers = {text_at(record, "value")};
  } else if (record.has("answers_spans")) {  // DROP
    answers = texts_at(record.at("answers_spans"), "spans");
  } else {
    const char* key = record.has("answers") ? "answers" : "answer";
    const JsonAt member = record.at(key);
    if (member.value().is_string()) {
      answers = {member.text()};
    } else if (member.value().is_object() && member.has("value")) {  // TriviaQA: {"value": ..., "aliases": [...]}
      answers = texts_at(member, "aliases");
      answers.insert(answers.begin(), text_at(member, "value"));
    } else if (member.value().is_object()) {  // SQuAD: {"text": [...], "answer_start": [...]}
      answers = texts_at(member, "text");
    } else {
      for (const JsonAt& element : member.elements()) {
        answers.push_back(element.value().is_object() ? text_at(element, "text") : element.text());
      }
    }
  }
  if (answers.empty()) record.corrupt("has no answer");
  for (std::string& answer : answers) answer = std::string(stripped(answer));
  if (answers.front().empty()) record.corrupt("has an empty answer");
  return answers;
}

Cloze cloze_of(const JsonAt& record) {
  Cloze cloze;
  cloze.answers = answers_of(record);
  if (record.has("text")) {
    cloze.document = text_at(record, "text");
    if (record.has("key")) cloze.key = text_at(record, "key");
    return cloze;
  }
  const char* const document = record.has("passage") ? "passage" : "context";
  if (record.has(document)) {
    cloze.document = text_at(record, document);
  } else {  // TriviaQA has several
    for (const auto& [pages, texts] :
         {std::pair{"entity_pages", "wiki_context"}, {"search_results", "search_context"}}) {
      if (!record.has(pages)) continue;
      for (const std::string& page : texts_at(record.at(pages), texts)) cloze.document += page + "\n";
    }
    if (stripped(cloze.document).empty()) record.corrupt("has no document to recall from: no text, context or passage");
  }
  cloze.question = std::string(stripped(text_at(record, "question")));
  if (cloze.question.empty()) record.at("question").corrupt("is empty");
  return cloze;
}

// SQuAD's own file: articles of paragraphs of questions.
std::vector<Cloze> squad_file(const JsonAt& file) {
  std::vector<Cloze> clozes;
  for (const JsonAt& article : file.at("data").elements()) {
    for (const JsonAt& paragraph : article.at("paragraphs").elements()) {
      for (const JsonAt& question : paragraph.at("qas").elements()) {
        // SQuAD 2 has questions that the paragraph does not answer.
        if (question.boolean_or("is_impossible", false)) continue;
        Cloze cloze;
        cloze.document = text_at(paragraph, "context");
        cloze.question = std::string(stripped(text_at(question, "question")));
        cloze.answers = answers_of(question);
        clozes.push_back(std::move(cloze));
      }
    }
  }
  return clozes;
}

std::string without_endings(std::string text, const std::string& ending) {
  const std::string lower_ending = unicode::lower_case(ending);
  while (!ending.empty() && text.size() >= ending.size() &&
         unicode::lower_case(std::string_view(text).substr(text.size() - ending.size())) == lower_ending) {
    text.resize(text.size() - ending.size());
  }
  return text;
}

std::size_t answer_place(const std::string& document, const Cloze& cloze, const ClozeStyle& style) {
  if (style.from_start) return 0;
  std::size_t first = std::string::npos;
  std::vector<std::string> wanted{cloze.answers.front()};
  if (!cloze.key.empty()) wanted.push_back(cloze.key);
  for (const std::string& text : wanted) first = std::min(first, find_any_case(document, text));
  return std::min(first, document.size());
}

std::string prompt_of(const std::string& document, const Cloze& cloze, ClozeKind kind) {
  if (!cloze.question.empty()) {
    std::string text = document;
    if (kind == ClozeKind::question_answering) {  // the marks of TriviaQA's pages
      for (const char* mark : {"[PAR]", "[DOC]", "[TLE]"}) text = replaced(text, mark, "");
    }
    text = without_endings(std::move(text), cloze.question);
    return std::string(stripped_of(stripped(text), '.')) + ". " + cloze.question;
  }
  if (cloze.key.empty() || kind == ClozeKind::squad) return std::string(stripped(document));
  std::string text = document;
  if (kind == ClozeKind::swde) text.resize(std::min(text.find("Summary of information above..."), text.size()));
  text = without_endings(std::move(text), cloze.key + ":");
  return std::string(stripped_of(stripped(text), '.')) + ". " + first_raised(cloze.key) + ":";
}

}  // namespace

std::string window_around(const std::string& document, std::size_t at, std::int64_t size,
                          const RequestEncoder& encoder) {
  const Tokens tokens = encoder.encode(document);
  const auto place = static_cast<std::int64_t>(encoder.encode(std::string_view(document).substr(0, at)).size());
  const std::int64_t begin = std::max<std::int64_t>(0, place - size / 2);
  const std::int64_t end = std::min<std::int64_t>(static_cast<std::int64_t>(tokens.size()), begin + size);
  return encoder.tokenizer().decode(
      std::span(tokens).subspan(static_cast<std::size_t>(std::min(begin, end)),
                                static_cast<std::size_t>(std::max<std::int64_t>(end - begin, 0))));
}

std::vector<Question> cloze_questions(const std::vector<Record>& records, const ClozeStyle& style,
                                      const RequestEncoder& encoder, std::int64_t length) {
  require(length > kClozeRoom, "recall-length is {}, expected more than {}", length, kClozeRoom);
  std::vector<Question> questions;
  for (const Record& record : records) {
    const JsonAt at = record.at();
    for (const Cloze& cloze : at.has("data") ? squad_file(at) : std::vector<Cloze>{cloze_of(at)}) {
      const std::string document(stripped(cloze.document));
      const std::string cut =
          window_around(document, answer_place(document, cloze, style), length - kClozeRoom, encoder);
      Question question;
      question.prompt = prompt_of(std::string(stripped(cut)), cloze, style.kind);
      question.answers = cloze.answers;
      question.about = nlohmann::json::object();
      questions.push_back(std::move(question));
    }
  }
  return questions;
}

}  // namespace qdelta::eval
