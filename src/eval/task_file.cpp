#include "eval/task_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "eval/data_file.h"
#include "eval/fewshot.h"
#include "eval/multiple_choice.h"
#include "template/jinja.h"

namespace qdelta::eval {
namespace {

namespace fs = std::filesystem;

// A template, or the name of a member that is a list.
class Texts {
 public:
  Texts(const nlohmann::json& value, const std::string& where) {
    if (value.is_string()) {
      text_ = value.get<std::string>();
      templates_.emplace_back(text_);
      return;
    }
    if (!value.is_array() || value.empty() ||
        !std::ranges::all_of(value, [](const nlohmann::json& v) { return v.is_string(); })) {
      fail(Status::corrupt, "{}: expected a text or a list of texts", where);
    }
    for (const nlohmann::json& element : value) templates_.emplace_back(element.get<std::string>());
  }

  [[nodiscard]] std::vector<std::string> of(const Record& record) const {
    if (templates_.size() == 1 && record.value.contains(text_) && record.value.at(text_).is_array()) {
      return texts_at(record.at(), text_.c_str());
    }
    std::vector<std::string> out;
    for (const jinja::Template& one : templates_) out.push_back(rendered(one, record));
    return out;
  }
  static std::string rendered(const jinja::Template& one, const Record& record) {
    return record.at().within([&] { return one.render(nlohmann::ordered_json(record.value)); });
  }

 private:
  std::string text_;
  std::vector<jinja::Template> templates_;
};

std::int64_t gold_of(const Record& record, const std::string& answer, const std::vector<std::string>& choices) {
  if (const auto found = std::ranges::find(choices, answer); found != choices.end()) return found - choices.begin();
  std::int64_t index = -1;
  const auto read = std::from_chars(answer.data(), answer.data() + answer.size(), index);
  const bool whole = read.ec == std::errc() && read.ptr == answer.data() + answer.size();
  if (!whole || index < 0 || index >= std::ssize(choices)) {
    record.at().corrupt("its answer is '{}', which is none of its {} choices, nor the index of one", answer,
                        choices.size());
  }
  return index;
}

struct Definition {  // NOLINT(bugprone-exception-escape): moving JSON asserts, and does not throw
  std::string name, folder;
  nlohmann::json json;
  std::string path;

  [[nodiscard]] std::vector<Record> records(const char* key) const {
    return read_records((fs::path(folder) / text_at({json, path}, key)).string());
  }
};

std::vector<ChoiceQuestion> choice_questions(const Definition& definition, std::span<const Record> records) {
  const jinja::Template prompt(text_at({definition.json, definition.path}, "prompt"));
  const jinja::Template answer(text_at({definition.json, definition.path}, "answer"));
  const Texts choices(definition.json.at("choices"), definition.path + ": choices");
  std::vector<ChoiceQuestion> questions;
  for (const Record& record : records) {
    ChoiceQuestion question;
    question.choices = choices.of(record);
    if (question.choices.size() < 2)
      record.at().corrupt("has {} choices, expected at least 2", question.choices.size());
    const std::string context = Texts::rendered(prompt, record);
    for (const std::string& choice : question.choices) question.requests.push_back({context, " " + choice});
    question.gold = gold_of(record, Texts::rendered(answer, record), question.choices);
    questions.push_back(std::move(question));
  }
  return questions;
}

// Questions that are answered freely, as if the first of their answers were the only choice: so they can be shots.
std::vector<ChoiceQuestion> free_questions(const Definition& definition, std::span<const Record> records) {
  const jinja::Template prompt(text_at({definition.json, definition.path}, "prompt"));
  const Texts answers(definition.json.at("answer"), definition.path + ": answer");
  std::vector<ChoiceQuestion> questions;
  for (const Record& record : records) {
    ChoiceQuestion question;
    question.choices = answers.of(record);
    if (question.choices.empty()) record.at().corrupt("has no answer");
    question.requests = {{Texts::rendered(prompt, record), " " + question.choices.front()}};
    questions.push_back(std::move(question));
  }
  return questions;
}

// The questions of the records, limited, with solved ones before them.
template <class Make>
std::vector<ChoiceQuestion> with_shots(const Definition& definition, std::vector<Record>& records,
                                       const TaskSource& source, const Make& make) {
  std::vector<Record> shots;
  const std::int64_t count = source.settings.fewshot;
  const bool own = definition.json.contains("fewshot_data");
  if (count > 0) shots = own ? definition.records("fewshot_data") : records;
  const std::vector<ChoiceQuestion> solved = make(definition, shots);
  limit_to(records, source.settings.limit);
  std::vector<ChoiceQuestion> questions = make(definition, records);
  add_shots({count, shots, solved, !own}, records, questions);
  return questions;
}

// The task's own choice among the metrics of its kind; empty: none.
std::string metric_of(const Definition& definition, const std::array<std::string_view, 2>& known) {
  if (!definition.json.contains("metric")) return "";
  std::string name = text_at({definition.json, definition.path}, "metric");
  if (std::ranges::find(known, name) == known.end()) {
    fail(Status::corrupt, "{}: there is no metric '{}' for this kind of task; there are {} and {}", definition.path,
         name, known[0], known[1]);
  }
  return name;
}

void add_choices(const Definition& definition, std::vector<Record> records, const TaskSource& source, TaskList& out) {
  const std::string metric = metric_of(definition, {"acc", "acc_norm"});
  std::vector<ChoiceQuestion> questions = with_shots(definition, records, source, choice_questions);
  out.push_back(std::make_unique<ChoiceTask>(definition.name, *source.encoder, records, std::move(questions),
                                             ChoiceMetrics{.acc = metric != "acc_norm", .acc_norm = metric != "acc"}));
}

void add_generation(const Definition& definition, std::vector<Record> records, const TaskSource& source,
                    TaskList& out) {
  const bool exact = metric_of(definition, {"contains", "exact_match"}) == "exact_match";
  std::vector<Question> questions;
  for (ChoiceQuestion& free : with_shots(definition, records, source, free_questions)) {
    questions.push_back(
        {std::move(free.requests.front().context), std::move(free.choices), records[questions.size()].value});
  }
  const JsonAt at(definition.json, definition.path);
  const std::int64_t most = definition.json.contains("max_tokens") ? index_at(at, "max_tokens", 1, 1 << 20) : 32;
  const std::vector<std::string> stop =
      definition.json.contains("stop") ? texts_at(at, "stop") : std::vector<std::string>{"\n"};
  out.push_back(std::make_unique<GenerationTask>(definition.name, *source.encoder, std::move(questions), most, stop,
                                                 exact ? AnswerMetric::exact_match : AnswerMetric::contains));
}

}  // namespace

void add_task_of_file(const std::string& path, const TaskSource& source, TaskList& out) {
  require(source.encoder != nullptr, "{} needs a tokenizer", path);
  const std::vector<Record> file = read_records(path);
  if (file.size() != 1) fail(Status::corrupt, "{}: expected one JSON object that describes a task", path);
  Definition definition;
  definition.json = file.front().value;
  definition.path = path;
  definition.folder = fs::path(path).parent_path().string();
  definition.name = text_at({definition.json, path}, "task");
  for (const auto& [key, value] : definition.json.items()) {
    constexpr std::array<std::string_view, 9> kKeys{"task",   "data",       "fewshot_data", "prompt", "choices",
                                                    "answer", "max_tokens", "stop",         "metric"};
    if (std::ranges::find(kKeys, key) == kKeys.end()) {
      fail(Status::corrupt, "{}: there is no '{}' in a task; see docs/evaluation.md", path, key);
    }
  }
  static_cast<void>(text_at({definition.json, path}, "prompt"));
  if (!definition.json.contains("answer")) fail(Status::corrupt, "{}: 'answer' is missing", path);
  std::vector<Record> records = definition.records("data");
  if (definition.json.contains("choices")) {
    add_choices(definition, std::move(records), source, out);
  } else {
    add_generation(definition, std::move(records), source, out);
  }
}

}  // namespace qdelta::eval
