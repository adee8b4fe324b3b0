// The paper's identities, checked on this model's own numbers in double: each side computed its own way, from the
// definitions, and compared over all the tokens looked at.
//
//   query_readout   S_{t-1} q = sum_tau write_tau (k~_{tau,t} . q) v_tau                 (time-evolved keys, history.h)
//   key_readout     S_{t-1} k likewise
//   one_step        v - S_t x = (1 - beta a) (v - alpha S_{t-1} x)                        (the lemma)
//   error_path      v_t - alpha S_{t-1} x_t = e_{t-1} + dv - dp + (1 - alpha) S_{t-1} x_t (the theorem's decomposition)
//   wy_product      prod_i (I - beta_i x_i k_i^T) = I - sum_i w_i k_i^T                   (extended WY, first chunk)
//   wy_state        S_r = sum_i (gamma_r / gamma_i) k_i u~_i^T
//   ut_transform    U~ = (I + strictLower(diag(beta) (Gamma . X K^T)))^-1 diag(beta) V    (equals the recursion's u~)
//
// `model_output` is no identity: it is how far the output that the model's own kernels computed, in their precision,
// is from the recurrence in double.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "analyze/section.h"
#include "analyze/trace.h"

namespace qdelta::analyze {

class KeyHistory;
struct Step;

// |left - right| / |right|, over everything that was compared.
struct Difference {
  double error = 0, size = 0;  // squares

  [[nodiscard]] double relative() const;
};

struct IdentityState;  // what it keeps between tokens

class HeadIdentities {
 public:
  explicit HeadIdentities(HeadName name);
  HeadIdentities(HeadIdentities&&) noexcept;
  HeadIdentities& operator=(HeadIdentities&&) noexcept;
  ~HeadIdentities();

  // Called with the history before this step's transition.
  void add(const LayerTrace& trace, const Step& step, const KeyHistory& history);
  [[nodiscard]] const HeadName& name() const { return name_; }
  [[nodiscard]] const std::map<std::string, Difference>& differences() const { return differences_; }

 private:
  HeadName name_;
  std::map<std::string, Difference> differences_;
  std::unique_ptr<IdentityState> state_;
};

// The largest relative difference of any identity (without model_output).
[[nodiscard]] double largest_difference(const std::vector<HeadIdentities>& heads);

[[nodiscard]] Section identities_section(const std::vector<HeadIdentities>& heads);

}  // namespace qdelta::analyze
