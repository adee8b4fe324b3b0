#include "eval/multiple_choice.h"

#include <algorithm>
#include <filesystem>

#include "eval/python_text.h"
#include "io/untrusted_text.h"

namespace qdelta::eval {
namespace {

std::vector<ChoiceRequest> requests_for(const std::string& context, const std::vector<std::string>& choices) {
  std::vector<ChoiceRequest> requests;
  requests.reserve(choices.size());
  for (const std::string& choice : choices) requests.push_back({context, " " + choice});
  return requests;
}

ChoiceQuestion plain_question(const std::string& context, std::vector<std::string> choices, std::int64_t gold) {
  ChoiceQuestion question;
  question.requests = requests_for(context, choices);
  question.choices = std::move(choices);
  question.gold = gold;
  return question;
}

std::int64_t last_index(const JsonAt& record, const std::vector<std::string>& choices) {
  if (choices.size() < 2) record.corrupt("has {} choices, expected at least 2", choices.size());
  return static_cast<std::int64_t>(choices.size()) - 1;
}

// What AI2's question files (ARC, OpenBookQA) have in common. Their own layout puts stem and choices under "question",
// with a label in each choice; the Hugging Face one has a list of texts and one of labels.
struct LabelledChoices {
  std::vector<std::string> texts;
  std::int64_t gold = 0;
};

LabelledChoices labelled_choices(const JsonAt& record) {
  const JsonAt choices = record.has("choices") ? record.at("choices") : record.at("question").at("choices");
  LabelledChoices out;
  std::vector<std::string> labels;
  if (choices.value().is_array()) {
    for (const JsonAt& choice : choices.elements()) {
      out.texts.push_back(text_at(choice, "text"));
      labels.push_back(text_at(choice, "label"));
    }
  } else {
    out.texts = texts_at(choices, "text");
    labels = texts_at(choices, "label");
  }
  if (labels.size() != out.texts.size()) choices.corrupt("{} labels for {} texts", labels.size(), out.texts.size());
  static_cast<void>(last_index(choices, out.texts));
  const std::string whole_key = text_at(record, "answerKey");
  const std::string key(stripped(whole_key));
  const auto found = std::find(labels.begin(), labels.end(), key);
  if (found == labels.end()) record.at("answerKey").corrupt("is {}, which no choice has as label", qdelta::shown(key));
  out.gold = found - labels.begin();
  return out;
}

// The layout with the question as it is asked in "query", and in "gold" the index of the right one of "choices".
ChoiceQuestion indexed_question(const std::string& context, const JsonAt& record) {
  std::vector<std::string> choices = texts_at(record, "choices");
  const std::int64_t gold = index_at(record, "gold", 0, last_index(record, choices));
  return plain_question(context, std::move(choices), gold);
}

}  // namespace

ChoiceQuestion arc_question(const JsonAt& record) {
  if (record.has("query")) {
    std::string context = text_at(record, "query");
    if (!context.ends_with("\nAnswer:")) context += "\nAnswer:";
    return indexed_question(context, record);
  }
  const JsonAt question = record.at("question");
  const std::string stem = question.value().is_object() ? text_at(question, "stem") : question.text();
  LabelledChoices choices = labelled_choices(record);
  return plain_question("Question: " + stem + "\nAnswer:", std::move(choices.texts), choices.gold);
}

ChoiceQuestion openbookqa_question(const JsonAt& record) {
  if (record.has("query")) return indexed_question(text_at(record, "query"), record);
  const std::string stem =
      record.has("question_stem") ? text_at(record, "question_stem") : text_at(record.at("question"), "stem");
  LabelledChoices choices = labelled_choices(record);
  return plain_question(stem, std::move(choices.texts), choices.gold);
}

std::string hellaswag_cleaned(std::string_view text) {
  const std::string titled = replaced(stripped(text), " [title]", ". ");
  // Without [...] on one line, each as short as possible.
  std::string out;
  std::size_t done = 0;
  for (std::size_t open = titled.find('['); open != std::string::npos; open = titled.find('[', open)) {
    const std::size_t close = titled.find(']', open);
    if (close == std::string::npos) break;
    if (std::string_view(titled).substr(open, close - open).find('\n') != std::string_view::npos) {
      ++open;
      continue;
    }
    out.append(titled, done, open - done);
    done = open = close + 1;
  }
  out.append(titled, done);
  return replaced(out, "  ", " ");
}

ChoiceQuestion hellaswag_question(const JsonAt& record) {
  const std::string context = hellaswag_cleaned(text_at(record, "activity_label") + ": " + text_at(record, "ctx_a") +
                                                " " + capitalized(text_at(record, "ctx_b")));
  std::vector<std::string> endings = texts_at(record, "endings");
  for (std::string& ending : endings) ending = hellaswag_cleaned(ending);
  const std::int64_t gold = index_at(record, "label", 0, last_index(record, endings));
  return plain_question(context, std::move(endings), gold);
}

ChoiceQuestion piqa_question(const JsonAt& record) {
  return plain_question("Question: " + text_at(record, "goal") + "\nAnswer:",
                        {text_at(record, "sol1"), text_at(record, "sol2")}, index_at(record, "label", 0, 1));
}

void add_piqa_labels(std::vector<Record>& records, const std::string& path) {
  if (std::all_of(records.begin(), records.end(),
                  [](const Record& record) { return record.value.contains("label"); })) {
    return;
  }
  namespace fs = std::filesystem;
  const std::string stem = path.substr(0, path.find(".json", path.find_last_of('/') + 1));
  std::string labels;
  for (const char* ending : {"_labels.txt", "_labels.lst", "-labels.lst", "-labels.txt"}) {
    if (fs::is_regular_file(stem + ending)) labels = stem + ending;
  }
  if (labels.empty()) {
    fail(Status::corrupt, "{}: its records have no label, and there is no {}_labels.txt beside it", path, stem);
  }
  const std::string text = read_whole(labels);
  std::size_t at = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = stripped(std::string_view(text).substr(std::min(at, end), end - std::min(at, end)));
    if (line != "0" && line != "1") {
      fail(Status::corrupt, "{}: line {} is {}, expected 0 or 1 for each of the {} records", labels, i + 1,
           qdelta::shown(line), records.size());
    }
    records[i].value["label"] = line == "1" ? 1 : 0;
    at = end + 1;
  }
  if (at < text.size() && !stripped(std::string_view(text).substr(at)).empty()) {
    fail(Status::corrupt, "{}: has more labels than {} has records ({})", labels, path, records.size());
  }
}

ChoiceQuestion winogrande_question(const JsonAt& record) {
  ChoiceQuestion question;
  std::string continuation;
  if (record.has("context_options")) {
    question.choices = texts_at(record, "context_options");
    continuation = text_at(record, "continuation");
    question.gold = index_at(record, "gold", 0, last_index(record, question.choices));
  } else {
    const std::string sentence = text_at(record, "sentence");
    const std::size_t blank = sentence.find('_');
    if (blank == std::string::npos) record.at("sentence").corrupt("has no _ to put an option in");
    for (const char* option : {"option1", "option2"}) {
      question.choices.push_back(sentence.substr(0, blank) + text_at(record, option));
    }
    continuation = stripped(std::string_view(sentence).substr(blank + 1));
    question.gold = index_at(record, "answer", 1, 2) - 1;
  }
  for (const std::string& context : question.choices) question.requests.push_back({context, " " + continuation});
  return question;
}

ChoiceQuestion boolq_question(const JsonAt& record) {
  const std::int64_t gold =
      record.has("label") ? index_at(record, "label", 0, 1) : (record.at("answer").boolean() ? 1 : 0);
  return plain_question(
      text_at(record, "passage") + "\nQuestion: " + text_at(record, "question") + "?\nAnswer:", {"no", "yes"}, gold);
}

namespace {

std::vector<Metric> metrics_of(const ChoiceMetrics& measured) {
  std::vector<Metric> metrics;
  if (measured.acc) metrics.push_back({"acc", Aggregation::mean});
  if (measured.acc_norm) metrics.push_back({"acc_norm", Aggregation::mean});
  return metrics;
}

}  // namespace

ChoiceTask::ChoiceTask(std::string name, const RequestEncoder& encoder, std::span<const Record> records,
                       std::vector<ChoiceQuestion> questions, const ChoiceMetrics& metrics)
    : LikelihoodTask(std::move(name), metrics_of(metrics)), questions_(std::move(questions)), measured_(metrics) {
  for (std::size_t n = 0; n < questions_.size(); ++n) {
    std::vector<TokenPair> pairs;
    for (const ChoiceRequest& request : questions_[n].requests) {
      pairs.push_back(records[n].at().within([&] { return encoder.pair(request.context, request.continuation); }));
    }
    add(std::move(pairs));
  }
}

nlohmann::json ChoiceTask::shown(std::int64_t example) const {
  const ChoiceQuestion& question = questions_[static_cast<std::size_t>(example)];
  nlohmann::json texts;
  for (const ChoiceRequest& request : question.requests) texts.push_back({request.context, request.continuation});
  return {{"texts", std::move(texts)}, {"gold", question.gold}};
}

nlohmann::json ChoiceTask::values(std::int64_t example, std::span<const Likelihood> likelihoods) const {
  const ChoiceQuestion& question = questions_[static_cast<std::size_t>(example)];
  std::size_t best = 0;
  std::size_t best_normalized = 0;
  const auto normalized = [&](std::size_t i) {
    // An empty answer has no length: the harness's division gives minus infinity, or nothing at all.
    return likelihoods[i].log_likelihood / static_cast<double>(length_of(question.choices[i]));
  };
  for (std::size_t i = 1; i < likelihoods.size(); ++i) {
    if (likelihoods[i].log_likelihood > likelihoods[best].log_likelihood) best = i;
    if (measured_.acc_norm && normalized(i) > normalized(best_normalized)) best_normalized = i;
  }
  const auto right = [&](std::size_t choice) { return static_cast<std::int64_t>(choice) == question.gold ? 1 : 0; };
  nlohmann::json values;
  if (measured_.acc) values["acc"] = right(best);
  if (measured_.acc_norm) values["acc_norm"] = right(best_normalized);
  return values;
}

}  // namespace qdelta::eval
