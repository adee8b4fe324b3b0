// What the map of a case's tokens is, in double precision.
#pragma once

#include "kernels/recurrence_case.h"

namespace qdelta::testing {

// M is the final state of the identity without values, in double.
inline std::vector<double> oracle_m(const RecurrenceCase& problem) {
  OracleShape shape = oracle_shape(problem.spec);
  OracleInputs<double> in = oracle_inputs(problem);
  const std::int64_t K = problem.spec.key_dim;
  shape.value_dim = K;
  in.v.assign(in.g.size() * static_cast<std::size_t>(K), 0);
  in.h0.assign(static_cast<std::size_t>(problem.spec.sequences() * problem.spec.value_heads() * K * K), 0);
  for (std::size_t i = 0; i < in.h0.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i) % (K * K);
    in.h0[i] = at / K == at % K ? 1 : 0;
  }
  return oracle_forward(shape, in).ht;
}

inline std::vector<double> oracle_n(const RecurrenceCase& problem) {
  OracleInputs<double> in = oracle_inputs(problem);
  in.h0.clear();
  return oracle_forward(oracle_shape(problem.spec), in).ht;
}

inline std::vector<double> oracle_dn(const RecurrenceCase& problem) {
  return oracle_backward<double>(oracle_shape(problem.spec), oracle_inputs(problem),
                                 {to_doubles(problem.d_o.view()), {}})
      .h0;
}

}  // namespace qdelta::testing
