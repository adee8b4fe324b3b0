#include "eval/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "data/mqar.h"
#include "eval/cloze.h"
#include "eval/data_file.h"
#include "eval/fewshot.h"
#include "eval/lambada.h"
#include "eval/multiple_choice.h"
#include "eval/needle.h"
#include "eval/recall_task.h"
#include "eval/wikitext.h"

namespace qdelta::eval {
namespace {

// A data set's file by the names that it goes by: the task's own, with the split, and others.
std::string file_of(const std::string& task, const TaskSettings& settings, const std::vector<std::string>& others) {
  std::vector<std::string> stems;
  for (const char* split : {"", "_test", "_validation", "_valid", "_val", "_dev"}) stems.push_back(task + split);
  stems.insert(stems.end(), others.begin(), others.end());
  return find_data(settings.data, task, stems);
}

// TASK_train.jsonl and the like; "" where there is none.
std::string training_file(const std::string& task, const TaskSettings& settings) {
  try {
    return find_data(settings.data, task, {task + "_train", task + "_training"});
  } catch (const Error&) {
    return "";
  }
}

struct ChoiceEntry {
  std::string_view name;
  ChoiceQuestion (*question_of)(const JsonAt&);
  bool normalized;
  std::vector<std::string> files;
};

void make_choice(const TaskEntry& entry, const TaskSource& source, TaskList& out) {
  static const std::array<ChoiceEntry, 7> kKinds{{
      {"arc_easy", arc_question, true, {"ARC-Easy-Test", "ARC-Easy"}},
      {"arc_challenge", arc_question, true, {"ARC-Challenge-Test", "ARC-Challenge"}},
      {"hellaswag", hellaswag_question, true, {}},
      {"piqa", piqa_question, true, {}},
      {"winogrande", winogrande_question, false, {"winogrande_xl", "winogrande_xl_validation"}},
      {"boolq", boolq_question, false, {}},
      {"openbookqa", openbookqa_question, true, {}},
  }};
  const auto* const kind =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const ChoiceEntry& k) { return k.name == entry.name; });
  const auto read = [&](const std::string& path) {
    std::vector<Record> records = read_records(path);
    if (kind->name == "piqa") add_piqa_labels(records, path);
    return records;
  };
  const auto questions_of = [&](std::span<const Record> records) {
    std::vector<ChoiceQuestion> questions;
    for (const Record& record : records) questions.push_back(kind->question_of(record.at()));
    return questions;
  };
  std::vector<Record> records = read(file_of(entry.name, source.settings, kind->files));
  const std::int64_t count = source.settings.fewshot;
  const std::string training = count > 0 ? training_file(entry.name, source.settings) : "";
  std::vector<Record> shots;
  if (count > 0) shots = training.empty() ? records : read(training);
  const std::vector<ChoiceQuestion> solved = questions_of(shots);
  limit_to(records, source.settings.limit);
  std::vector<ChoiceQuestion> questions = questions_of(records);
  add_shots({count, shots, solved, training.empty()}, records, questions);
  out.push_back(std::make_unique<ChoiceTask>(entry.name, *source.encoder, records, std::move(questions),
                                             ChoiceMetrics{.acc_norm = kind->normalized}));
}

void make_lambada(const TaskEntry& entry, const TaskSource& source, TaskList& out) {
  std::vector<Record> records = read_records(file_of(entry.name, source.settings, {"lambada_test_en", "lambada_test"}));
  limit_to(records, source.settings.limit);
  out.push_back(std::make_unique<LambadaTask>(entry.name, *source.encoder, records));
}

void make_wikitext(const TaskEntry& entry, const TaskSource& source, TaskList& out) {
  std::vector<std::string> pages = read_wikitext(
      file_of(entry.name, source.settings, {"wikitext2_raw_test", "wiki.test", "wikitext-2-raw-v1_test"}));
  limit_to(pages, source.settings.limit);
  out.push_back(std::make_unique<WikitextTask>(entry.name, *source.encoder, std::move(pages)));
}

void make_cloze(const TaskEntry& entry, const TaskSource& source, TaskList& out) {
  const std::string name = entry.name;
  ClozeStyle style;
  if (name == "swde") style.kind = ClozeKind::swde;
  if (name == "fda") style.kind = ClozeKind::fda;
  if (name == "nq" || name == "triviaqa" || name == "drop") style.kind = ClozeKind::question_answering;
  style.from_start = name == "triviaqa" || name == "drop";
  std::vector<Record> records = read_records(file_of(name, source.settings,
                                                     {"based_" + name, "based-" + name, "based_" + name + "_2048",
                                                      name + "_completion", name + "_xquad_en", name + "_open_dev"}));
  if (records.size() > 1 || !records.front().at().has("data")) limit_to(records, source.settings.limit);
  std::vector<Question> questions = cloze_questions(records, style, *source.encoder, source.settings.recall_length);
  limit_to(questions, source.settings.limit);
  out.push_back(std::make_unique<GenerationTask>(name, *source.encoder, std::move(questions), kClozeAnswerTokens,
                                                 std::vector<std::string>{"\n"}));
}

void make_needle(const TaskEntry& entry, const TaskSource& source, TaskList& out) {
  const TaskSettings& settings = source.settings;
  const NeedleMaterial material =
      settings.ruler_data.empty() ? builtin_needle_material(settings.seed) : read_needle_material(settings.ruler_data);
  for (const std::int64_t length : settings.lengths) {
    NeedleOptions options;
    options.variant = entry.name[std::string_view(entry.name).size() - 1] - '0';
    options.length = length;
    options.samples = settings.limit > 0 ? std::min(settings.limit, settings.samples) : settings.samples;
    options.seed = settings.seed;
    options.haystack = haystack_size_of(settings.haystack);
    out.push_back(std::make_unique<GenerationTask>(fmt::format("{}_{}", entry.name, length), *source.encoder,
                                                   needle_questions(material, *source.encoder, options),
                                                   kNeedleAnswerTokens, std::vector<std::string>{}));
  }
}

void make_mqar(const TaskEntry& entry, const TaskSource& source, TaskList& out) {
  const TaskSettings& settings = source.settings;
  for (MqarTask& task : mqar_tasks_of(settings.mqar, settings.rewrites, mqar_test_tasks)) {
    if (settings.limit > 0) task.examples = std::min(task.examples, settings.limit);
    std::string name = fmt::format("{}_{}_{}", entry.name, task.length, task.pairs);
    if (task.rewrites > 0) name += fmt::format("_rewrites_{}", task.rewrites);
    // Far from the seeds that people train with.
    out.push_back(std::make_unique<RecallTask>(
        std::move(name), task, static_cast<std::int32_t>(source.model.vocab_size), settings.seed + 2'000'003));
  }
}

constexpr std::array<TaskEntry, 19> kTasks{{
    {"lambada_openai", "the last word of a passage", true, false, make_lambada},
    {"wikitext", "perplexity of whole pages", true, false, make_wikitext},
    {"arc_easy", "grade-school science, the easy part", true, true, make_choice},
    {"arc_challenge", "grade-school science, the hard part", true, true, make_choice},
    {"hellaswag", "how a story goes on", true, true, make_choice},
    {"piqa", "physical common sense", true, true, make_choice},
    {"winogrande", "whom a pronoun means", true, true, make_choice},
    {"boolq", "yes or no, after a passage", true, true, make_choice},
    {"openbookqa", "elementary science", true, true, make_choice},
    {"niah_single_1", "a number in a repeated line", true, false, make_needle},
    {"niah_single_2", "a number in essays", true, false, make_needle},
    {"niah_single_3", "a uuid in essays", true, false, make_needle},
    {"swde", "recall from web pages", true, false, make_cloze},
    {"fda", "recall from medical device reports", true, false, make_cloze},
    {"squad", "recall from Wikipedia paragraphs", true, false, make_cloze},
    {"triviaqa", "recall from pages about trivia", true, false, make_cloze},
    {"nq", "recall from Wikipedia pages", true, false, make_cloze},
    {"drop", "recall from paragraphs with numbers", true, false, make_cloze},
    {"mqar", "synthetic recall; needs no tokenizer", false, false, make_mqar},
}};

}  // namespace

std::span<const TaskEntry> all_tasks() { return kTasks; }

std::vector<const TaskEntry*> tasks_named(const std::string& list) {
  std::vector<const TaskEntry*> chosen;
  std::istringstream in(list);
  for (std::string name; std::getline(in, name, ',');) {
    const auto* const found =
        std::find_if(kTasks.begin(), kTasks.end(), [&](const TaskEntry& entry) { return name == entry.name; });
    if (found == kTasks.end()) {
      std::vector<std::string_view> names;
      for (const TaskEntry& entry : kTasks) names.emplace_back(entry.name);
      fail(Status::invalid_argument, "there is no task '{}'; the tasks are {}", name, fmt::join(names, ", "));
    }
    const TaskEntry* entry = &*found;
    if (std::find(chosen.begin(), chosen.end(), entry) == chosen.end()) chosen.push_back(entry);
  }
  require(!chosen.empty(), "no task is named: give --tasks, such as lambada_openai,arc_easy");
  return chosen;
}

TaskList make_tasks(std::span<const TaskEntry* const> entries, const TaskSource& source) {
  const TaskSettings& settings = source.settings;
  require(settings.limit >= 0, "limit is {}, expected 0 (all) or more", settings.limit);
  require(settings.fewshot >= 0, "fewshot is {}, expected 0 or more", settings.fewshot);
  require(settings.samples > 0, "samples is {}, expected at least 1", settings.samples);
  TaskList tasks;
  for (const TaskEntry* entry : entries) {
    require(source.encoder != nullptr || !entry->reads_text, "{} needs a tokenizer", entry->name);
    require(settings.fewshot == 0 || entry->fewshot, "--fewshot is for tasks with choices, and {} has none",
            entry->name);
    entry->make(*entry, source, tasks);
  }
  return tasks;
}

}  // namespace qdelta::eval
