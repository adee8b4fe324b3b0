// How long the memory holds a pair: by the decay alone, and by what the transitions leave of its key.
//
//   retention(age) = mean over tau of |k~_{tau,tau+age}| / |k_tau|           (history.h)
//   memory length  = the age at which retention falls below 1/e
//   decay length   = -1 / mean(log alpha):  the same if nothing were ever corrected
#pragma once

#include <vector>

#include "analyze/section.h"
#include "analyze/trace.h"

namespace qdelta::analyze {

class KeyHistory;
struct Step;

struct HeadMemory {
  HeadName name;
  std::vector<double> retained;       // [age]: sums of |k~| / |k|
  std::vector<std::int64_t> counted;  // [age]: how many
  double log_decay = 0;               // sum of log alpha over all tokens
  std::int64_t tokens = 0;

  // Called with the history before this step's transition.
  void add(const Step& step, const KeyHistory& history);
  [[nodiscard]] std::vector<double> retention() const;
  // Between two ages by linear interpolation; the largest age there is, where it is never reached (`reached` false).
  struct Length {
    double tokens = 0;
    bool reached = true;
  };
  [[nodiscard]] Length length() const;
  [[nodiscard]] double decay_length() const;  // infinite without decay
};

[[nodiscard]] Section memory_length_section(const std::vector<HeadMemory>& heads);

}  // namespace qdelta::analyze
