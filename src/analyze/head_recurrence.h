// The recurrence of one head, token by token, in double, with everything on the way that the analyses look at.
//
//   S^ = alpha S_{t-1}        v^ = S_{t-1}^T k        o^ = S_{t-1}^T q        x = k + lambda q
//   e~ = v - S^^T x           r = write v - erase S^^T x
//   S_t = S^ + k r^T          e = v - S_t^T x
//
// The state is S[K][V], the paper's transposed. The paper's stability results are stated without decay; with it they
// hold for the decayed state S^ in the place of S_{t-1}, which is what e~ uses here.
#pragma once

#include <Eigen/Core>

#include <cstdint>
#include <vector>

#include "analyze/trace.h"

namespace qdelta::analyze {

using Vector = Eigen::VectorXd;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Step {
  std::int64_t sequence = 0;
  std::int64_t position = 0;  // in the sequence
  std::int64_t token = 0;     // of the trace
  double alpha = 1, erase = 0, mix = 0, write = 0;
  double beta = 0;       // the gate itself, which erase and write are made of
  Vector q, k, x, v;     // q and k after their norm
  Vector key_value;      // v^
  Vector query_value;    // o^
  Vector before;         // S^^T x: the prediction the write starts from
  Vector after;          // S_t^T x
  Vector output;         // S_t^T q, without the scale
  double alignment = 0;  // a = k.x
  Matrix state;          // S_t
};

class HeadRecurrence {
 public:
  HeadRecurrence(const LayerTrace& trace, std::int64_t head);

  // Goes on by a token; false when there is none left.
  bool next();
  [[nodiscard]] const Step& step() const { return step_; }

 private:
  const LayerTrace& trace_;
  std::int64_t head_;
  std::int64_t next_token_ = 0;
  Step step_;
};

}  // namespace qdelta::analyze
