// How full the memory is: its norm and its effective rank over time.
//
//   effective rank = exp(-sum p_i log p_i),   p_i = s_i / sum s,   s the singular values of S_t      (Roy, Vetterli
//   2007)
//
// It counts directions by how evenly they are used: 1 for a single pair, K where all are used alike.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "analyze/section.h"
#include "analyze/trace.h"

namespace qdelta::analyze {

struct Step;

struct HeadRank {
  struct Point {
    double norm = 0, rank = 0;
  };
  HeadName name;
  std::map<std::int64_t, std::vector<Point>> at;  // after so many tokens, one of each sequence that has as many

  void add(const Step& step);
};

// Of a matrix with rows of that width; 0 for a matrix of zeros.
[[nodiscard]] double effective_rank(const std::vector<double>& row_major, std::int64_t width);
// After how many tokens one looks: all small numbers, then ever more rarely.
[[nodiscard]] bool looks_at(std::int64_t tokens);

[[nodiscard]] Section state_rank_section(const std::vector<HeadRank>& heads, std::int64_t key_dim);

}  // namespace qdelta::analyze
