// A task of one's own, in a small JSON file:
//
//   {"task": "capitals",                            its name
//    "data": "capitals.jsonl",                      records, beside this file
//    "fewshot_data": "capitals_train.jsonl",        optional: where --fewshot draws from
//    "prompt": "{{country}} has the capital",       a Jinja template over a record's members
//    "choices": ["{{right}}", "{{wrong}}"],         templates, or the name of a member that is a list of texts
//    "answer": "0"}                                 the right one's index, or its text; a template
//
// With choices the metrics are acc and acc_norm, as for the built-in tasks; "metric" names one of them. Without, the
// model goes on with the prompt, up to "max_tokens" (32) or a text of "stop" (["\n"]), and the metric is whether
// "answer", a template or the name of a member that is a list of texts, is in what it says ("contains"), or all that it
// says ("metric": "exact_match"). --fewshot puts solved examples before either kind of question.
#pragma once

#include <string>

#include "eval/tasks.h"

namespace qdelta::eval {

// Throws with the file, the record and what is wrong.
void add_task_of_file(const std::string& path, const TaskSource& source, TaskList& out);

// Whether a name of --tasks is such a file.
[[nodiscard]] inline bool is_task_file(const std::string& name) { return name.ends_with(".json"); }

}  // namespace qdelta::eval
