// What the gates do: alpha (how much of the memory stays), beta (how strongly a token is written), lambda (how much of
// the query's prediction the write corrects for). Only those that the rule has.
#pragma once

#include <vector>

#include "analyze/section.h"
#include "analyze/trace.h"

namespace qdelta::analyze {

struct Step;

struct HeadGates {
  HeadName name;
  std::vector<double> alpha, beta, lambda;  // of each token

  void add(const Step& step);
};

[[nodiscard]] Section gates_section(Rule rule, const std::vector<HeadGates>& heads);

}  // namespace qdelta::analyze
