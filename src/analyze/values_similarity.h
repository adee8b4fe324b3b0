// Do the key and the query find the same thing in the memory?
//
//   v^ = S_{t-1} k      o^ = S_{t-1} q      cos = v^.o^ / (|v^| |o^|)
#pragma once

#include <vector>

#include "analyze/section.h"
#include "analyze/trace.h"

namespace qdelta::analyze {

struct Step;

struct HeadSimilarity {
  HeadName name;
  std::vector<double> cosine;  // of each token whose memory answers anything to both

  void add(const Step& step);
};

[[nodiscard]] Section values_similarity_section(const std::vector<HeadSimilarity>& heads);

}  // namespace qdelta::analyze
