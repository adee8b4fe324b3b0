// What went into the recurrence of a layer and what came out, on the host: the raw material of every analysis.
#pragma once

#include <cstdint>
#include <vector>

#include "rule/rule.h"

namespace qdelta::analyze {

// Row-major: q, k [tokens][q_heads][K], before their norm; v, o [tokens][v_heads][V]; g, beta, lambda
// [tokens][v_heads]. Every sequence starts from an empty state.
struct LayerTrace {
  std::int64_t layer = 0;
  Rule rule = Rule::q_delta;
  double scale = 1;  // of the output
  std::int64_t q_heads = 0, v_heads = 0, key_dim = 0, value_dim = 0;
  std::vector<std::int64_t> offsets;  // sequence n is tokens [offsets[n], offsets[n + 1])
  std::vector<float> q, k, v, g, beta, lambda, o;

  [[nodiscard]] std::int64_t tokens() const { return offsets.back(); }
  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

// A head of a layer, as results name it.
struct HeadName {
  std::int64_t layer = 0, head = 0;
};

}  // namespace qdelta::analyze
