// How far an evaluation has come, as people see it: a bar for each task.
#pragma once

#include <chrono>
#include <string>

#include "eval/evaluation.h"
#include "train/progress.h"

namespace qdelta {

class EvaluationDisplay {
 public:
  // `before` stands in front of the names of tasks.
  explicit EvaluationDisplay(std::string before = "") : before_(std::move(before)) {}

  void show(const eval::EvaluationProgress& now) {
    const std::string name = before_ + now.task;
    if (name_ != name) {
      if (!name_.empty()) progress_.finish();
      begun_ = std::chrono::steady_clock::now();
      name_ = name;
    }
    ProgressState state;
    state.name = name_;
    state.step = now.done;
    state.total = now.total;
    state.first_step = now.found;
    state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
    progress_.update(state);
  }
  void finish() { progress_.finish(); }

 private:
  std::string before_, name_;
  Progress progress_;
  std::chrono::steady_clock::time_point begun_;
};

}  // namespace qdelta
