#include "analyze/head_recurrence.h"

#include <cmath>

#include "rule/oracle.h"

namespace qdelta::analyze {
namespace {

Vector row_of(const std::vector<float>& values, std::int64_t row, std::int64_t width) {
  return Eigen::Map<const Eigen::VectorXf>(values.data() + row * width, width).cast<double>();
}

Vector normed_row_of(const std::vector<float>& values, std::int64_t row, std::int64_t width) {
  const Vector raw = row_of(values, row, width);
  return raw / std::sqrt(raw.squaredNorm() + kNormEpsilon);
}

}  // namespace

HeadRecurrence::HeadRecurrence(const LayerTrace& trace, std::int64_t head) : trace_(trace), head_(head) {
  step_.sequence = -1;
}

bool HeadRecurrence::next() {
  if (next_token_ >= trace_.tokens()) return false;
  Step& s = step_;
  const std::int64_t t = next_token_++;
  while (s.sequence < 0 || t >= trace_.offsets[static_cast<std::size_t>(s.sequence) + 1]) {
    ++s.sequence;
    s.state = Matrix::Zero(trace_.key_dim, trace_.value_dim);
  }
  s.token = t;
  s.position = t - trace_.offsets[static_cast<std::size_t>(s.sequence)];
  const std::int64_t q_head = head_ / (trace_.v_heads / trace_.q_heads);
  const std::int64_t gate = t * trace_.v_heads + head_;
  const auto at = static_cast<std::size_t>(gate);
  s.q = normed_row_of(trace_.q, t * trace_.q_heads + q_head, trace_.key_dim);
  s.k = normed_row_of(trace_.k, t * trace_.q_heads + q_head, trace_.key_dim);
  s.v = row_of(trace_.v, gate, trace_.value_dim);
  s.beta = trace_.beta[at];
  const RuleOutputs<double> rule =
      rule_forward(trace_.rule, RuleInputs<double>{trace_.g[at], s.beta, trace_.lambda[at], s.k.squaredNorm()});
  s.alpha = std::exp(rule.log_decay);
  s.erase = rule.erase;
  s.mix = rule.mix;
  s.write = rule.write;
  s.x = s.k + s.mix * s.q;
  s.alignment = s.k.dot(s.x);

  s.key_value.noalias() = s.state.transpose() * s.k;
  s.query_value.noalias() = s.state.transpose() * s.q;
  s.before = s.alpha * (s.key_value + s.mix * s.query_value);
  const Vector written = s.write * s.v - s.erase * s.before;
  s.state *= s.alpha;
  s.state.noalias() += s.k * written.transpose();
  s.after = s.before + s.alignment * written;
  s.output = s.alpha * s.query_value + s.k.dot(s.q) * written;
  return true;
}

}  // namespace qdelta::analyze
