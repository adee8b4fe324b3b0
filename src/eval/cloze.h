// Recall from a text that is given, as a cloze (Based and Just-Read-Twice, Arora et al. 2024): a document, then the
// beginning of a sentence or a question that something in the document answers.
//
//   squad                 the text as it is (or, out of SQuAD's own files, like the next)
//   nq, triviaqa, drop    context. question
//   swde, fda             text. Key:
//
// A document is cut to length - 50 tokens around the place where the answer (swde, fda: the key or the answer) first
// stands, half before and half behind it; to its end where it is not found; to its beginning for triviaqa and drop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/data_file.h"
#include "eval/task.h"

namespace qdelta::eval {

constexpr std::int64_t kClozeAnswerTokens = 48;
constexpr std::int64_t kClozeRoom = 50;  // of the length, for question and answer

enum class ClozeKind { squad, question_answering, swde, fda };

struct ClozeStyle {
  ClozeKind kind = ClozeKind::squad;
  bool from_start = false;  // the document's beginning, wherever the answer is
};

// Out of records in the layouts of the based data sets (text, key, value; context, question, answers), of Hugging
// Face's SQuAD and DROP, or of SQuAD's own file.
[[nodiscard]] std::vector<Question> cloze_questions(const std::vector<Record>& records, const ClozeStyle& style,
                                                    const RequestEncoder& encoder, std::int64_t length);

// The part of a document around the byte `at`, `size` tokens long: half before, the rest from there on.
[[nodiscard]] std::string window_around(const std::string& document, std::size_t at, std::int64_t size,
                                        const RequestEncoder& encoder);

}  // namespace qdelta::eval
