// Few-shot prompts, as lm-evaluation-harness makes them: before the question stand solved examples, each followed by an
// empty line. They are drawn for every question anew, by Python's random.Random(1234).sample, out of the training split
// or, where there is none, out of the test itself without the question that is asked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/data_file.h"
#include "eval/multiple_choice.h"

namespace qdelta::eval {

struct Shots {
  std::int64_t count = 0;  // before each question
  std::span<const Record> records;
  std::span<const ChoiceQuestion> questions;  // the same, in their prompts
  bool of_the_test = false;                   // the records are those that are asked about
};

// Puts the examples before the contexts of all `questions`, which were made out of `records`.
void add_shots(const Shots& shots, std::span<const Record> records, std::span<ChoiceQuestion> questions);

}  // namespace qdelta::eval
