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
    if (task_ != now.task) {
      if (!task_.empty()) progress_.finish();
      begun_ = std::chrono::steady_clock::now();
      task_ = now.task;
    }
    ProgressState state;
    state.name = before_ + now.task;
    state.step = now.done;
    state.total = now.total;
    state.first_step = now.found;
    state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
    progress_.update(state);
  }
  void finish() { progress_.finish(); }

 private:
  std::string before_, task_;
  Progress progress_;
  std::chrono::steady_clock::time_point begun_;
};

}  // namespace qdelta
