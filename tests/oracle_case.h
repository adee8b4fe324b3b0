// A problem for the oracle, in double precision: inputs, and the gradients of a loss in its outputs.
#pragma once

#include <array>
#include <complex>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "rule/oracle.h"
#include "testing.h"

namespace qdelta::testing {

struct OracleCase {
  OracleShape shape;
  OracleInputs<double> in;
  OracleOutputs<double> d;

  // The loss whose gradient oracle_backward gives.
  template <class T>
  [[nodiscard]] T loss(const OracleOutputs<T>& out) const {
    T sum(0);
    for (std::size_t i = 0; i < out.o.size(); ++i) sum += d.o[i] * out.o[i];
    for (std::size_t i = 0; i < d.ht.size(); ++i) sum += d.ht[i] * out.ht[i];
    return sum;
  }
};

inline std::vector<double> random_values(Random& random, std::int64_t count, double low, double high) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(uniform(random, low, high));
  return values;
}

inline OracleCase random_oracle_case(Random& random, const OracleShape& shape, bool initial_state,
                                     bool final_state_counts = true) {
  const std::int64_t rows = shape.tokens() * shape.v_heads;
  const std::int64_t states = shape.sequences() * shape.v_heads * shape.state_size();
  OracleCase made{shape, {}, {}};
  made.in.q = random_values(random, shape.tokens() * shape.q_heads * shape.key_dim, -1, 1);
  made.in.k = random_values(random, shape.tokens() * shape.q_heads * shape.key_dim, -1, 1);
  made.in.v = random_values(random, rows * shape.value_dim, -1, 1);
  made.in.g = random_values(random, rows, -1, 0);
  made.in.beta = random_values(random, rows, 0.1, 1);
  made.in.lambda = random_values(random, rows, 0.1, 1);
  if (initial_state) made.in.h0 = random_values(random, states, -1, 1);
  made.d.o = random_values(random, rows * shape.value_dim, -1, 1);
  if (final_state_counts) made.d.ht = random_values(random, states, -1, 1);
  return made;
}

// The inputs by name.
template <class T>
std::array<std::pair<std::string_view, std::vector<T>*>, 7> fields_of(OracleInputs<T>& in) {
  return {{{"q", &in.q},
           {"k", &in.k},
           {"v", &in.v},
           {"g", &in.g},
           {"beta", &in.beta},
           {"lambda", &in.lambda},
           {"h0", &in.h0}}};
}

inline OracleInputs<std::complex<double>> as_complex(OracleInputs<double> in) {
  OracleInputs<std::complex<double>> out;
  const auto from = fields_of(in);
  const auto to = fields_of(out);
  for (std::size_t i = 0; i < from.size(); ++i) to[i].second->assign(from[i].second->begin(), from[i].second->end());
  return out;
}

}  // namespace qdelta::testing
