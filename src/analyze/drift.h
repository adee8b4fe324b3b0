// What moves the error between two tokens, and the bound that the stability theorem puts on it.
//
//   target drift       dv = v_t - v_{t-1}
//   prediction drift   dp = S_{t-1} (x_t - x_{t-1})
//   residual drift     r  = dv - dp            without decay:  e~_t = e_{t-1} + r_t
//
// The theorem is stated without decay. With it the state also loses (1 - alpha) S_{t-1} x_t of its prediction, so that
//   e~_t = e_{t-1} + r'_t,   r'_t = dv - dp + (1 - alpha_t) S_{t-1} x_t,
// and its proof goes through word for word with r' in the place of r. With rho = sup |1 - beta a| < 1 and r' <= r_max:
//   |e_t| <= rho^t |e_0| + (1 - rho^t) / (1 - rho) rho r_max                           the theorem's bound
//   |e_t| <= |1 - beta_t a_t| (B_{t-1} + |r'_t|) =: B_t,  B_0 = |e_0|                   the same, step by step
// where e_0 is the error that the first token of a sequence leaves. The second needs no assumption at all.
#pragma once

#include <vector>

#include "analyze/section.h"
#include "analyze/trace.h"

namespace qdelta::analyze {

struct Step;

struct HeadDrift {
  HeadName name;
  // Of each token but the first of its sequence.
  std::vector<double> target, prediction, residual, residual_with_decay;
  // Of each token; the first of a sequence is its e_0.
  std::vector<std::int64_t> position;
  std::vector<double> error;
  std::vector<double> stepwise;  // B_t
  double rho = 0;                // over all tokens but the first ones
  double largest_drift = 0;      // of r'
  bool contracts = true;         // beta a in (0, 2) throughout: the theorem applies

  void add(const Step& step);
  // The theorem's bound for each token, in the order of `error`; empty where it does not apply.
  [[nodiscard]] std::vector<double> theorem() const;
  // Errors above a bound, beyond rounding. There must be none.
  [[nodiscard]] std::int64_t violations(const std::vector<double>& bound) const;

 private:
  std::vector<double> v_, after_;  // of the token before: its value, and what the state then answered to its x
};

[[nodiscard]] Section drift_section(const std::vector<HeadDrift>& heads);
[[nodiscard]] Section bound_section(const std::vector<HeadDrift>& heads);

}  // namespace qdelta::analyze
