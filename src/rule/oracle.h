// The oracle: the recurrence and its gradient, one scalar at a time, in any number type. Every faster form is checked
// against it, and it is checked against itself: run with complex<double>, a step of 1e-30 i in one input gives the
// exact derivative of the same code in the imaginary part of the output (no cancellation), which must equal
// oracle_backward.
//
// Forward, per token, with q and k after the optional norm x / sqrt(sum x^2 + 1e-6), state S[K][V]:
//   S <- exp(log_decay) S;   r <- write v - erase (k + mix q)^T S;   S <- S + k r^T;   o <- scale q^T S
//
// Backward, from the last token to the first, D the gradient of S, Sd the decayed state before the write:
//   dq = scale S do          D += scale q do^T
//   dr = D^T k               dk = D r             dwrite = dr.v         dv = write dr
//   x  = k + mix q           dx = -erase Sd dr    derase = -dr.(x^T Sd) dmix = dx.q
//   D -= erase x dr^T        dk += dx             dq += mix dx
//   dlog_decay = sum(D . Sd) D <- exp(log_decay) D
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "rule/rule.h"

namespace qdelta {

struct OracleShape {
  std::vector<std::int64_t> offsets;  // N + 1 token offsets: sequence n is tokens [offsets[n], offsets[n+1])
  std::int64_t q_heads = 0, v_heads = 0, key_dim = 0, value_dim = 0;
  Rule rule = Rule::q_delta;
  double scale = 1;
  bool qk_l2norm = false;

  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  [[nodiscard]] std::int64_t tokens() const { return offsets.back(); }
  [[nodiscard]] std::int64_t state_size() const { return key_dim * value_dim; }
};

// Row-major: q, k [tokens][q_heads][K]; v, o [tokens][v_heads][V]; g, beta, lambda [tokens][v_heads];
// h0, ht [sequences][v_heads][K][V].
template <class T>
struct OracleInputs {
  std::vector<T> q, k, v, g, beta, lambda, h0;
};
template <class T>
struct OracleOutputs {
  std::vector<T> o, ht;
};

namespace oracle_detail {

// One token's rows after the norm, and what its rule makes of its gates.
template <class T>
struct Token {
  std::vector<T> q, k, x;
  T q_inverse_norm{}, k_inverse_norm{};
  RuleInputs<T> rule_in;
  RuleOutputs<T> coef;
};

template <class T>
T normalise(std::vector<T>& row, bool enabled) {
  if (!enabled) return T(1);
  using Sum = std::conditional_t<std::is_same_v<T, float>, double, T>;  // a long row's square need not be a float
  Sum sum(0);
  for (const T& value : row) sum += Sum(value) * Sum(value);
  const T inverse = static_cast<T>(Sum(1) / std::sqrt(sum + Sum(kNormEpsilon)));
  for (T& value : row) value *= inverse;
  return inverse;
}

// Gradient of the norm: dx = (dy - y (y.dy)) / norm, y being the normalised row.
template <class T>
void normalise_backward(const std::vector<T>& normalised, T inverse_norm, bool enabled, std::vector<T>& grad) {
  if (!enabled) return;
  T along(0);
  for (std::size_t i = 0; i < grad.size(); ++i) along += normalised[i] * grad[i];
  for (std::size_t i = 0; i < grad.size(); ++i) grad[i] = (grad[i] - normalised[i] * along) * inverse_norm;
}

template <class T>
Token<T> load_token(const OracleShape& shape, const OracleInputs<T>& in, std::int64_t t, std::int64_t head) {
  const std::int64_t q_head = head / (shape.v_heads / shape.q_heads);
  const auto row = (t * shape.q_heads + q_head) * shape.key_dim;
  const auto gate = static_cast<std::size_t>(t * shape.v_heads + head);
  Token<T> token;
  token.q.assign(in.q.begin() + row, in.q.begin() + row + shape.key_dim);
  token.k.assign(in.k.begin() + row, in.k.begin() + row + shape.key_dim);
  token.q_inverse_norm = normalise(token.q, shape.qk_l2norm);
  token.k_inverse_norm = normalise(token.k, shape.qk_l2norm);
  token.rule_in = {in.g[gate], in.beta[gate], in.lambda[gate], T(0)};
  for (const T& value : token.k) token.rule_in.k_dot_k += value * value;
  token.coef = rule_forward(shape.rule, token.rule_in);
  token.x = token.k;
  for (std::size_t i = 0; i < token.x.size(); ++i) token.x[i] += token.coef.mix * token.q[i];
  return token;
}

// row^T S for a state S[K][V].
template <class T>
std::vector<T> read_state(const std::vector<T>& state, const std::vector<T>& row, std::int64_t value_dim) {
  std::vector<T> out(static_cast<std::size_t>(value_dim), T(0));
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (std::size_t j = 0; j < out.size(); ++j) out[j] += row[i] * state[i * out.size() + j];
  }
  return out;
}

// Advances `state` by one token. `r` receives what was written, `decayed` (if given) the state before the write.
template <class T>
void advance(const Token<T>& token, std::span<const T> v, std::vector<T>& state, std::vector<T>& r,
             std::vector<T>* decayed) {
  const T decay = std::exp(token.coef.log_decay);
  for (T& value : state) value *= decay;
  if (decayed != nullptr) *decayed = state;
  const std::vector<T> predicted = read_state(state, token.x, static_cast<std::int64_t>(v.size()));
  r.resize(v.size());
  for (std::size_t j = 0; j < v.size(); ++j) r[j] = token.coef.write * v[j] - token.coef.erase * predicted[j];
  for (std::size_t i = 0; i < token.k.size(); ++i) {
    for (std::size_t j = 0; j < v.size(); ++j) state[i * v.size() + j] += token.k[i] * r[j];
  }
}

template <class T>
std::vector<T> entry_state(const OracleShape& shape, const std::vector<T>& h0, std::int64_t n, std::int64_t head) {
  const std::int64_t size = shape.state_size();
  if (h0.empty()) return std::vector<T>(static_cast<std::size_t>(size), T(0));
  const auto begin = h0.begin() + (n * shape.v_heads + head) * size;
  return {begin, begin + size};
}

}  // namespace oracle_detail

template <class T>
OracleOutputs<T> oracle_forward(const OracleShape& shape, const OracleInputs<T>& in) {
  using namespace oracle_detail;
  const std::int64_t dv = shape.value_dim;
  OracleOutputs<T> out;
  out.o.assign(static_cast<std::size_t>(shape.tokens() * shape.v_heads * dv), T(0));
  out.ht.reserve(static_cast<std::size_t>(shape.sequences() * shape.v_heads * shape.state_size()));
  std::vector<T> r;
  for (std::int64_t n = 0; n < shape.sequences(); ++n) {
    for (std::int64_t head = 0; head < shape.v_heads; ++head) {
      std::vector<T> state = entry_state(shape, in.h0, n, head);
      for (std::int64_t t = shape.offsets[n]; t < shape.offsets[n + 1]; ++t) {
        const Token<T> token = load_token(shape, in, t, head);
        const auto v_row = static_cast<std::size_t>((t * shape.v_heads + head) * dv);
        advance<T>(token, {in.v.data() + v_row, static_cast<std::size_t>(dv)}, state, r, nullptr);
        const std::vector<T> o = read_state(state, token.q, dv);
        for (std::size_t j = 0; j < o.size(); ++j) out.o[v_row + j] = T(shape.scale) * o[j];
      }
      out.ht.insert(out.ht.end(), state.begin(), state.end());
    }
  }
  return out;
}

// Gradients of sum(d.o * o) + sum(d.ht * ht) in every input. An empty d.ht counts as zero. The states of a whole
// sequence are kept, one head at a time.
template <class T>
OracleInputs<T> oracle_backward(const OracleShape& shape, const OracleInputs<T>& in, const OracleOutputs<T>& d) {
  using namespace oracle_detail;
  const std::int64_t dk = shape.key_dim;
  const std::int64_t dv = shape.value_dim;
  const auto V = static_cast<std::size_t>(dv);
  OracleInputs<T> grad;
  grad.q.assign(in.q.size(), T(0));
  grad.k.assign(in.k.size(), T(0));
  grad.v.assign(in.v.size(), T(0));
  grad.g.assign(in.g.size(), T(0));
  grad.beta.assign(in.g.size(), T(0));
  grad.lambda.assign(in.g.size(), T(0));
  for (std::int64_t n = 0; n < shape.sequences(); ++n) {
    for (std::int64_t head = 0; head < shape.v_heads; ++head) {
      const std::int64_t q_head = head / (shape.v_heads / shape.q_heads);
      // states[t]: on entry to token t of this sequence.
      std::vector<std::vector<T>> states{entry_state(shape, in.h0, n, head)};
      std::vector<T> r;
      for (std::int64_t t = shape.offsets[n]; t < shape.offsets[n + 1]; ++t) {
        states.push_back(states.back());
        const auto v_row = static_cast<std::size_t>((t * shape.v_heads + head) * dv);
        advance<T>(load_token(shape, in, t, head), {in.v.data() + v_row, V}, states.back(), r, nullptr);
      }
      std::vector<T> D = entry_state(shape, d.ht, n, head);
      std::vector<T> decayed;
      for (std::int64_t t = shape.offsets[n + 1] - 1; t >= shape.offsets[n]; --t) {
        const Token<T> token = load_token(shape, in, t, head);
        const auto gate = static_cast<std::size_t>(t * shape.v_heads + head);
        const T* v = in.v.data() + gate * V;
        const T* d_o = d.o.data() + gate * V;
        const std::vector<T>& after = states.back();
        std::vector<T> state = states[states.size() - 2];
        advance<T>(token, {v, V}, state, r, &decayed);

        std::vector<T> dq(token.q.size(), T(0)), dk_row(token.k.size(), T(0)), dr(V, T(0));
        for (std::size_t i = 0; i < token.q.size(); ++i) {
          for (std::size_t j = 0; j < V; ++j) {
            const T scaled = T(shape.scale) * d_o[j];
            dq[i] += after[i * V + j] * scaled;
            D[i * V + j] += token.q[i] * scaled;
            dr[j] += D[i * V + j] * token.k[i];
            dk_row[i] += D[i * V + j] * r[j];
          }
        }
        RuleOutputs<T> d_coef;
        const std::vector<T> predicted = read_state(decayed, token.x, dv);
        for (std::size_t j = 0; j < V; ++j) {
          d_coef.write += dr[j] * v[j];
          grad.v[gate * V + j] = token.coef.write * dr[j];
          d_coef.erase -= dr[j] * predicted[j];
        }
        const T decay = std::exp(token.coef.log_decay);
        for (std::size_t i = 0; i < token.q.size(); ++i) {
          T dx(0);
          for (std::size_t j = 0; j < V; ++j) {
            dx -= token.coef.erase * decayed[i * V + j] * dr[j];
            D[i * V + j] -= token.coef.erase * token.x[i] * dr[j];
            d_coef.log_decay += D[i * V + j] * decayed[i * V + j];
            D[i * V + j] *= decay;
          }
          dk_row[i] += dx;
          dq[i] += token.coef.mix * dx;
          d_coef.mix += dx * token.q[i];
        }
        const RuleInputs<T> d_rule = rule_backward(shape.rule, token.rule_in, d_coef);
        grad.g[gate] = d_rule.g;
        grad.beta[gate] = d_rule.beta;
        grad.lambda[gate] = d_rule.lambda;
        for (std::size_t i = 0; i < dk_row.size(); ++i) dk_row[i] += T(2) * d_rule.k_dot_k * token.k[i];
        normalise_backward(token.q, token.q_inverse_norm, shape.qk_l2norm, dq);
        normalise_backward(token.k, token.k_inverse_norm, shape.qk_l2norm, dk_row);
        const auto row = static_cast<std::size_t>((t * shape.q_heads + q_head) * dk);
        for (std::size_t i = 0; i < dq.size(); ++i) {
          grad.q[row + i] += dq[i];
          grad.k[row + i] += dk_row[i];
        }
        states.pop_back();
      }
      grad.h0.insert(grad.h0.end(), D.begin(), D.end());
    }
  }
  return grad;
}

}  // namespace qdelta
