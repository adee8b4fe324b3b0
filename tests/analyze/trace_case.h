// Traces for the tests of analyses: by hand, and at random.
#pragma once

#include <vector>

#include "analyze/head_recurrence.h"
#include "analyze/trace.h"
#include "rule/oracle.h"
#include "testing.h"

namespace qdelta::analyze::testing {

using qdelta::testing::uniform;

// A head of keys and values of width two; raw keys are so long that their norm makes them unit vectors to 1e-12.
struct HandMade {
  LayerTrace trace;

  explicit HandMade(Rule rule = Rule::q_delta) {
    trace.rule = rule;
    trace.q_heads = trace.v_heads = 1;
    trace.key_dim = trace.value_dim = 2;
    trace.offsets = {0};
  }
  struct Token {
    std::vector<float> q, k, v;
    float beta = 0, lambda = 0, alpha = 1;
  };
  void add(const Token& token) {
    for (const float value : token.q) trace.q.push_back(value * 1e4F);
    for (const float value : token.k) trace.k.push_back(value * 1e4F);
    trace.v.insert(trace.v.end(), token.v.begin(), token.v.end());
    trace.g.push_back(std::log(token.alpha));
    trace.beta.push_back(token.beta);
    trace.lambda.push_back(token.lambda);
    trace.o.insert(trace.o.end(), 2, 0.0F);
    ++last();
  }
  void end_sequence() { trace.offsets.push_back(trace.offsets.back()); }

 private:
  std::int64_t& last() {
    if (trace.offsets.size() == 1) trace.offsets.push_back(0);
    return trace.offsets.back();
  }
};

// Two sequences of several heads, with the outputs that the recurrence gives.
inline LayerTrace random_trace(Rule rule, std::int64_t tokens, std::uint64_t seed, double most_gate = 1) {
  Random random(seed);
  LayerTrace trace;
  trace.rule = rule;
  trace.layer = 3;
  trace.q_heads = 2;
  trace.v_heads = 4;
  trace.key_dim = 8;
  trace.value_dim = 6;
  trace.scale = 1 / std::sqrt(8.0);
  trace.offsets = {0, tokens / 3, tokens};
  const auto fill = [&](std::vector<float>& to, std::int64_t width, double low, double high) {
    for (std::int64_t i = 0; i < tokens * width; ++i) to.push_back(static_cast<float>(uniform(random, low, high)));
  };
  fill(trace.q, trace.q_heads * trace.key_dim, -1, 1);
  fill(trace.k, trace.q_heads * trace.key_dim, -1, 1);
  fill(trace.v, trace.v_heads * trace.value_dim, -1, 1);
  const bool decays = rule == Rule::q_delta || rule == Rule::gated_delta || rule == Rule::mamba2;
  fill(trace.g, trace.v_heads, decays ? -0.2 : 0, 0);
  fill(trace.beta, trace.v_heads, 0, most_gate);
  fill(trace.lambda, trace.v_heads, 0, most_gate);

  const OracleShape shape{trace.offsets,   trace.q_heads, trace.v_heads, trace.key_dim,
                          trace.value_dim, rule,          trace.scale,   true};
  const auto doubles = [](const std::vector<float>& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  const OracleInputs<double> in{doubles(trace.q),
                                doubles(trace.k),
                                doubles(trace.v),
                                doubles(trace.g),
                                doubles(trace.beta),
                                doubles(trace.lambda),
                                {}};
  const OracleOutputs<double> out = oracle_forward(shape, in);
  trace.o.assign(out.o.begin(), out.o.end());
  return trace;
}

// Feeds all of a head to an analysis.
template <class Analysis>
void feed(const LayerTrace& trace, std::int64_t head, Analysis& analysis) {
  HeadRecurrence recurrence(trace, head);
  while (recurrence.next()) analysis.add(recurrence.step());
}

}  // namespace qdelta::analyze::testing
