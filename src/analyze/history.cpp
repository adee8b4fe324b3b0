#include "analyze/history.h"

namespace qdelta::analyze {

void KeyHistory::begin(const Step& s) {
  if (s.position > 0) return;
  count_ = 0;
  if (keys_.rows() > 0) return;
  keys_ = Matrix::Zero(most_, s.k.size());
  values_ = Matrix::Zero(most_, s.v.size());
  writes_ = Vector::Zero(most_);
}

void KeyHistory::end(const Step& s) {
  auto keys = keys_.topRows(count_);
  const Vector along = keys * s.x;
  keys *= s.alpha;
  keys.noalias() -= (s.alpha * s.erase) * along * s.k.transpose();
  keys_.row(count_) = s.k.transpose();
  values_.row(count_) = s.v.transpose();
  writes_[count_] = s.write;
  ++count_;
}

}  // namespace qdelta::analyze
