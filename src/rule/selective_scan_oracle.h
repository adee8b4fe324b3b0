// The oracle of Mamba's selective scan and its gradient, one scalar at a time, in any number type. Like rule/oracle.h
// it is checked against its own complex-step derivative, and everything faster is checked against it.
//
// Forward, per token t, channel d and state n, with delta = softplus(dt + dt_bias), A = -exp(A_log):
//   h[n] <- exp(delta A[n]) h[n] + delta B[n] x;   p <- sum_n C[n] h[n] + skip x;   y <- p silu(z), or p without z
//
// Backward, from the last token to the first, G the gradient of h, h' the state before the token:
//   dp = dy silu(z)               dz = dy p silu'(z)          dC[n] += dp h[n]           G[n] += C[n] dp
//   dB[n] += G[n] delta x         dx = skip dp + delta sum_n G[n] B[n]                   dskip += dp x
//   E[n] = G[n] exp(delta A[n])   ddelta = sum_n E[n] h'[n] A[n] + x sum_n G[n] B[n]
//   dA_log[n] += E[n] h'[n] delta A[n]      ddt = ddelta softplus'(dt + dt_bias)         ddt_bias += ddt       G <- E
// dB and dC are sums over channels, dA_log, dskip and ddt_bias sums over tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

namespace qdelta {

struct ScanOracleShape {
  std::vector<std::int64_t> offsets;  // sequence n is tokens [offsets[n], offsets[n + 1])
  std::int64_t channels = 0, states = 0;

  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  [[nodiscard]] std::int64_t tokens() const { return offsets.back(); }
};

// Row-major: x, dt, z [tokens][D]; B, C [tokens][N]; A_log [D][N]; skip, dt_bias [D]; h0 [sequences][N][D]. Without a
// gate z is empty, without initial states h0.
template <class T>
struct ScanOracleInputs {
  std::vector<T> x, dt, B, C, z, A_log, skip, dt_bias, h0;
};
template <class T>
struct ScanOracleOutputs {
  std::vector<T> y, ht;
};

namespace scan_oracle_detail {

template <class T>
T sigmoid(const T& v) {
  return T(1) / (T(1) + std::exp(-v));
}
// log(1 + exp(v)), from which the larger part is taken out.
inline double softplus(double v) { return std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v))); }
inline std::complex<double> softplus(const std::complex<double>& v) {
  return v.real() > 0 ? v + std::log(1.0 + std::exp(-v)) : std::log(1.0 + std::exp(v));
}

// One channel of one sequence: where its values lie.
struct Place {
  std::int64_t D, N, d;
  [[nodiscard]] std::size_t wide(std::int64_t t) const { return static_cast<std::size_t>(t * D + d); }
  [[nodiscard]] std::size_t narrow(std::int64_t t, std::int64_t n) const { return static_cast<std::size_t>(t * N + n); }
  [[nodiscard]] std::size_t parameter(std::int64_t n) const { return static_cast<std::size_t>(d * N + n); }
  [[nodiscard]] std::size_t state(std::int64_t sequence, std::int64_t n) const {
    return static_cast<std::size_t>((sequence * N + n) * D + d);
  }
};

// h becomes the state after token t; returns p.
template <class T>
T advance(const ScanOracleInputs<T>& in, const Place& at, std::int64_t t, std::vector<T>& h) {
  const T delta = softplus(in.dt[at.wide(t)] + in.dt_bias[static_cast<std::size_t>(at.d)]);
  const T x = in.x[at.wide(t)];
  T p = in.skip[static_cast<std::size_t>(at.d)] * x;
  for (std::int64_t n = 0; n < at.N; ++n) {
    T& state = h[static_cast<std::size_t>(n)];
    state = std::exp(-delta * std::exp(in.A_log[at.parameter(n)])) * state + delta * in.B[at.narrow(t, n)] * x;
    p += in.C[at.narrow(t, n)] * state;
  }
  return p;
}

}  // namespace scan_oracle_detail

template <class T>
ScanOracleOutputs<T> scan_oracle_forward(const ScanOracleShape& shape, const ScanOracleInputs<T>& in) {
  using namespace scan_oracle_detail;
  const std::int64_t D = shape.channels;
  const std::int64_t N = shape.states;
  ScanOracleOutputs<T> out;
  out.y.resize(static_cast<std::size_t>(shape.tokens() * D));
  out.ht.resize(static_cast<std::size_t>(shape.sequences() * N * D));
  for (std::int64_t s = 0; s < shape.sequences(); ++s) {
    for (std::int64_t d = 0; d < D; ++d) {
      const Place at{D, N, d};
      std::vector<T> h(static_cast<std::size_t>(N), T(0));
      for (std::int64_t n = 0; n < N && !in.h0.empty(); ++n) h[static_cast<std::size_t>(n)] = in.h0[at.state(s, n)];
      for (std::int64_t t = shape.offsets[static_cast<std::size_t>(s)];
           t < shape.offsets[static_cast<std::size_t>(s) + 1]; ++t) {
        const T p = advance(in, at, t, h);
        const std::size_t i = at.wide(t);
        out.y[i] = in.z.empty() ? p : p * in.z[i] * sigmoid(in.z[i]);
      }
      for (std::int64_t n = 0; n < N; ++n) out.ht[at.state(s, n)] = h[static_cast<std::size_t>(n)];
    }
  }
  return out;
}

// Gradients of sum(dy . y) + sum(dht . ht); dht may be empty.
template <class T>
ScanOracleInputs<T> scan_oracle_backward(const ScanOracleShape& shape, const ScanOracleInputs<T>& in,
                                         const std::vector<T>& dy, const std::vector<T>& dht) {
  using namespace scan_oracle_detail;
  const std::int64_t D = shape.channels;
  const std::int64_t N = shape.states;
  const auto zeros = [](const std::vector<T>& like) { return std::vector<T>(like.size(), T(0)); };
  ScanOracleInputs<T> d{
      zeros(in.x),    zeros(in.dt),      zeros(in.B),
      zeros(in.C),    zeros(in.z),       zeros(in.A_log),
      zeros(in.skip), zeros(in.dt_bias), std::vector<T>(static_cast<std::size_t>(shape.sequences() * N * D), T(0))};
  for (std::int64_t s = 0; s < shape.sequences(); ++s) {
    const std::int64_t begin = shape.offsets[static_cast<std::size_t>(s)];
    const std::int64_t end = shape.offsets[static_cast<std::size_t>(s) + 1];
    for (std::int64_t channel = 0; channel < D; ++channel) {
      const Place at{D, N, channel};
      const auto c = static_cast<std::size_t>(channel);
      std::vector<T> h(static_cast<std::size_t>(N), T(0));
      std::vector<T> G(static_cast<std::size_t>(N), T(0));
      for (std::int64_t n = 0; n < N; ++n) {
        if (!in.h0.empty()) h[static_cast<std::size_t>(n)] = in.h0[at.state(s, n)];
        if (!dht.empty()) G[static_cast<std::size_t>(n)] = dht[at.state(s, n)];
      }
      std::vector<std::vector<T>> before;  // each token's h'
      std::vector<T> p;
      for (std::int64_t t = begin; t < end; ++t) {
        before.push_back(h);
        p.push_back(advance(in, at, t, h));
      }
      for (std::int64_t t = end; t-- > begin;) {
        const std::size_t i = at.wide(t);
        const auto back = static_cast<std::size_t>(t - begin);
        const T shifted = in.dt[i] + in.dt_bias[c];
        const T delta = softplus(shifted);
        const T x = in.x[i];
        T dp = dy[i];
        if (!in.z.empty()) {
          const T gate = sigmoid(in.z[i]);
          dp = dy[i] * in.z[i] * gate;
          d.z[i] = dy[i] * p[back] * gate * (T(1) + in.z[i] * (T(1) - gate));
        }
        T through_input(0);  // sum_n G[n] B[n]
        T ddelta(0);
        for (std::int64_t n = 0; n < N; ++n) {
          const auto k = static_cast<std::size_t>(n);
          const T A = -std::exp(in.A_log[at.parameter(n)]);
          const T decay = std::exp(delta * A);
          const T old = before[back][k];
          d.C[at.narrow(t, n)] += dp * (decay * old + delta * in.B[at.narrow(t, n)] * x);
          G[k] += in.C[at.narrow(t, n)] * dp;
          d.B[at.narrow(t, n)] += G[k] * delta * x;
          through_input += G[k] * in.B[at.narrow(t, n)];
          G[k] *= decay;
          ddelta += G[k] * old * A;
          d.A_log[at.parameter(n)] += G[k] * old * delta * A;
        }
        d.x[i] = in.skip[c] * dp + delta * through_input;
        d.skip[c] += dp * x;
        d.dt[i] = (ddelta + x * through_input) * sigmoid(shifted);
        d.dt_bias[c] += d.dt[i];
      }
      for (std::int64_t n = 0; n < N; ++n) d.h0[at.state(s, n)] = G[static_cast<std::size_t>(n)];
    }
  }
  return d;
}

}  // namespace qdelta
