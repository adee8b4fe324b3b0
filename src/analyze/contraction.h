// How far one write moves the prediction towards its target.
//
//   e_t = v_t - S_t x_t = (1 - beta_t a_t) (v_t - S^_t x_t),      a_t = k_t . x_t
//
// The error shrinks in one step where beta a lies in (0, 2) (the paper's lemma); |1 - beta a| says by how much. For
// Longhorn, beta is its beta / (1 + beta k.k), as in the update itself.
#pragma once

#include <vector>

#include "analyze/section.h"
#include "analyze/trace.h"

namespace qdelta::analyze {

struct Step;

struct HeadContraction {
  HeadName name;
  std::vector<double> beta_a;  // of each token

  void add(const Step& step);
  [[nodiscard]] std::vector<double> factors() const;  // |1 - beta a|
  [[nodiscard]] double share_inside() const;          // of (0, 2)
};

[[nodiscard]] Section contraction_section(const std::vector<HeadContraction>& heads);

}  // namespace qdelta::analyze
