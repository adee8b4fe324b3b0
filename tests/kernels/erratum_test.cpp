// The chunk form needs X K^T. The published kernel has K X^T, which is another computation: here both are written out
// in double precision, and only one of them is the recurrence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/recurrence_case.h"
#include "oracle_case.h"

namespace qdelta::testing {
namespace {

enum class Order { x_times_k, k_times_x };  // row r, column i: x_r . k_i, or k_r . x_i

constexpr std::int64_t kTokens = 128;

RecurrenceCase make_case(double highest_lambda) {
  CaseSpec spec;
  spec.tokens = kTokens;
  spec.key_dim = 32;
  spec.value_dim = 16;
  spec.lowest_g = -0.1;
  spec.highest_lambda = highest_lambda;
  spec.qk_l2norm = true;
  return random_case(spec, 91);
}

// The formulas of cpu/recurrence_chunk.cpp, one head and one sequence: A, V' = (I + A)^-1 R, O and S+.
std::vector<double> chunk_form(const RecurrenceCase& problem, std::int64_t chunk, Order order) {
  const std::int64_t K = problem.spec.key_dim;
  const std::int64_t V = problem.spec.value_dim;
  const OracleShape shape = oracle_shape(problem.spec);
  const OracleInputs<double> in = oracle_inputs(problem);
  std::vector<double> S = in.h0;
  std::vector<double> O;
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  const auto read = [&](const std::vector<double>& row, std::int64_t j) {
    double sum = 0;
    for (std::int64_t i = 0; i < K; ++i) sum += row[i] * S[i * V + j];
    return sum;
  };
  for (std::int64_t first = 0; first < kTokens; first += chunk) {
    const std::int64_t C = std::min(chunk, kTokens - first);
    std::vector<oracle_detail::Token<double>> tokens;  // rows after the norm, x, and what the rule makes of the gates
    std::vector<double> G;
    for (std::int64_t r = 0; r < C; ++r) {
      tokens.push_back(oracle_detail::load_token(shape, in, first + r, 0));
      G.push_back((r == 0 ? 0 : G.back()) + tokens.back().coef.log_decay);
    }
    std::vector<double> v_new(C * V);  // V'
    for (std::int64_t r = 0; r < C; ++r) {
      const auto& token = tokens[r];
      for (std::int64_t j = 0; j < V; ++j) {
        double sum =
            token.coef.write * in.v[(first + r) * V + j] - token.coef.erase * std::exp(G[r]) * read(token.x, j);
        for (std::int64_t i = 0; i < r; ++i) {
          const double product = order == Order::x_times_k ? dot(token.x, tokens[i].k) : dot(token.k, tokens[i].x);
          sum -= token.coef.erase * std::exp(G[r] - G[i]) * product * v_new[i * V + j];
        }
        v_new[r * V + j] = sum;
      }
      for (std::int64_t j = 0; j < V; ++j) {
        double sum = std::exp(G[r]) * read(token.q, j);
        for (std::int64_t i = 0; i <= r; ++i) {
          sum += std::exp(G[r] - G[i]) * dot(token.q, tokens[i].k) * v_new[i * V + j];
        }
        O.push_back(shape.scale * sum);
      }
    }
    for (std::int64_t i = 0; i < K; ++i) {
      for (std::int64_t j = 0; j < V; ++j) {
        S[i * V + j] *= std::exp(G[C - 1]);
        for (std::int64_t r = 0; r < C; ++r) {
          S[i * V + j] += std::exp(G[C - 1] - G[r]) * tokens[r].k[i] * v_new[r * V + j];
        }
      }
    }
  }
  return O;
}

TEST(Erratum, XTimesKIsTheRecurrence) {
  const RecurrenceCase problem = make_case(1);
  const std::vector<double> recurrence = reference_of(problem).o;
  for (const int chunk : kChunkLengths) {
    EXPECT_LE(relative_error(chunk_form(problem, chunk, Order::x_times_k), recurrence), 1e-12) << chunk;
  }
}

TEST(Erratum, KTimesXIsNot) {
  const RecurrenceCase problem = make_case(1);
  const std::vector<double> recurrence = reference_of(problem).o;
  for (const int chunk : kChunkLengths) {
    EXPECT_GE(relative_error(chunk_form(problem, chunk, Order::k_times_x), recurrence), 1e-2) << chunk;
  }
}

TEST(Erratum, WithoutLambdaTheOrderDoesNotMatter) {
  const RecurrenceCase problem = make_case(0);
  const std::vector<double> recurrence = reference_of(problem).o;
  for (const int chunk : kChunkLengths) {
    EXPECT_LE(relative_error(chunk_form(problem, chunk, Order::k_times_x), recurrence), 1e-12) << chunk;
  }
}

// Nothing that is computed may depend on where the chunks happen to fall.
TEST(Erratum, KTimesXChangesWithTheChunkLength) {
  const RecurrenceCase problem = make_case(1);
  const std::vector<double> at_64 = chunk_form(problem, 64, Order::k_times_x);
  for (const int chunk : {16, 32, 128}) {
    EXPECT_GE(relative_error(chunk_form(problem, chunk, Order::k_times_x), at_64), 1e-3) << chunk;
  }
}

TEST(Erratum, OurKernelIsTheRecurrenceWhateverTheChunkLength) {
  const RecurrenceCase problem = make_case(1);
  const std::vector<double> recurrence = reference_of(problem).o;
  const std::vector<double> at_64 = to_doubles(run_forward(problem, {Form::chunk, 64, 1, true}).o.view());
  EXPECT_LE(relative_error(at_64, recurrence), 1e-6);
  for (const int chunk : kChunkLengths) {
    const Results<Tensor> ours = run_forward(problem, {Form::chunk, chunk, 1, true});
    EXPECT_LE(relative_error(ours.o.view(), at_64), 1e-6) << chunk;
    EXPECT_GE(relative_error(ours.o.view(), chunk_form(problem, chunk, Order::k_times_x)), 1e-2) << chunk;
  }
}

}  // namespace
}  // namespace qdelta::testing
