// The time-evolved keys of the paper: what has become of each past key under the transitions since.
//
//   P_j = alpha_j (I - erase_j x_j k_j^T)          k~_{tau,t} = (prod_{j=tau+1}^{t-1} P_j)^T k_tau
//   S_{t-1} y = sum_{tau<t} write_tau (k~_{tau,t} . y) v_tau          for any y: the readout is a weighted sum of
//   values
//
// Each token changes all of them, so the cost grows with the square of the length: only the first tokens of a sequence.
#pragma once

#include "analyze/head_recurrence.h"

namespace qdelta::analyze {

class KeyHistory {
 public:
  explicit KeyHistory(std::int64_t most) : most_(most) {}

  // Before the transition of `step`: rows tau are k~_{tau,t}. A sequence's first token starts afresh.
  void begin(const Step& step);
  // The transition itself, and the step's own key.
  void end(const Step& step);

  // Whether the current token is still looked at.
  [[nodiscard]] bool looks(const Step& step) const { return step.position < most_; }
  [[nodiscard]] std::int64_t size() const { return count_; }
  [[nodiscard]] auto keys() const { return keys_.topRows(count_); }
  [[nodiscard]] auto values() const { return values_.topRows(count_); }
  [[nodiscard]] auto writes() const { return writes_.head(count_); }

 private:
  std::int64_t most_;
  std::int64_t count_ = 0;
  Matrix keys_, values_;
  Vector writes_;
};

}  // namespace qdelta::analyze
