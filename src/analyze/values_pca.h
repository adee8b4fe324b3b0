// How much of the key-retrieved values lies where the query-conditioned ones vary.
//
// U: eigenvectors of the covariance of o^ (centred, one head's tokens), by falling eigenvalue l_i. For each rank r:
//   variance  = sum_{i<r} l_i / sum l_i                       of o^
//   energy    = sum_t |U_r^T v^_t|^2 / sum_t |v^_t|^2         of v^, as it is
#pragma once

#include <vector>

#include "analyze/section.h"
#include "analyze/trace.h"

namespace qdelta::analyze {

struct Step;

struct HeadPca {
  HeadName name;
  std::vector<double> variance, energy;  // of ranks 1 to V, once finished

  void add(const Step& step);
  void finish();

 private:
  std::int64_t count_ = 0;
  std::vector<double> sum_, products_, energy_products_;  // of o^; o^ o^^T and v^ v^^T, [V][V]
};

// The smallest rank whose share reaches `share`; the last where none does.
[[nodiscard]] std::int64_t rank_reaching(const std::vector<double>& shares, double share);

[[nodiscard]] Section values_pca_section(const std::vector<HeadPca>& heads);

}  // namespace qdelta::analyze
