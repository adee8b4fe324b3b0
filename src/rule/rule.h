// The rules: what each published system asks of the one recurrence (state S[K][V], per head):
//
//   S <- exp(log_decay) S
//   r <- write v - erase (k + mix q)^T S
//   S <- S + k r^T
//   o <- scale q^T S
//
// A rule maps a token's gates (g, beta, lambda) and k.k to (log_decay, erase, mix, write), and has its own backward.
// Its traits say which gates a model with it has, and where they come from. To add one: write its struct, and put it at
// the end of RuleTable and of the enum. Nothing else changes.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

// The rules run in GPU kernels too.
#ifdef __CUDACC__
#define QDELTA_HOST_DEVICE __host__ __device__
#else
#define QDELTA_HOST_DEVICE
#endif

namespace qdelta {

enum class Rule : int { linear, retnet, mamba2, longhorn, delta, gated_delta, q_delta };

inline constexpr double kNormEpsilon = 1e-6;  // inside the square root of the L2 norm of q and k

// What a token gives to its rule. k_dot_k is of the k that the recurrence sees, after the optional norm.
template <class T>
struct RuleInputs {
  T g{}, beta{}, lambda{}, k_dot_k{};
};

// What the recurrence takes from the rule. The read vector is k + mix q.
template <class T>
struct RuleOutputs {
  T log_decay{}, erase{}, mix{}, write{};
};

struct RuleTraits {
  std::string_view name;     // as in files and on the command line
  std::string_view title;    // as in the paper
  std::string_view formula;  // of the state, for people: S is V x K there
  bool erases = false;       // false: erase is zero for every input, so kernels may skip the correction
  bool reads_beta = false;
  bool reads_lambda = false;

  // Where a model takes the gates from. Beta and lambda are learned projections of the token where the rule reads them.
  bool learns_decay = false;  // g = -exp(A_log) step, step = softplus(a + dt_bias); false: g is fixed
  bool beta_is_step = false;  // beta is the step of the decay, which the rule then cannot do without
  double (*fixed_log_decay)(std::int64_t head) = nullptr;  // null: g = 0 where no decay is learned

  [[nodiscard]] constexpr bool learns_beta() const { return reads_beta && !beta_is_step; }
  // Whether the rule makes sense with its learned decay switched off.
  [[nodiscard]] constexpr bool decay_is_optional() const { return learns_decay && !beta_is_step; }
};

namespace rules {

struct Linear {
  static constexpr RuleTraits traits{.name = "linear", .title = "Linear attention", .formula = "S = S + v k^T"};
  template <class T>
  QDELTA_HOST_DEVICE static RuleOutputs<T> forward(const RuleInputs<T>& in) {
    return {in.g, T(0), T(0), T(1)};
  }
  template <class T>
  QDELTA_HOST_DEVICE static RuleInputs<T> backward(const RuleInputs<T>& /*in*/, const RuleOutputs<T>& d) {
    return {d.log_decay, T(0), T(0), T(0)};
  }
};

inline double retnet_log_decay(std::int64_t head) { return std::log1p(-std::exp2(-5.0 - static_cast<double>(head))); }

// The decay of each head is fixed: gamma = 1 - 2^(-5-h).
struct RetNet {
  static constexpr RuleTraits traits{
      .name = "retnet",
      .title = "RetNet",
      .formula = "S = gamma S + v k^T",
      .fixed_log_decay = retnet_log_decay,
  };
  template <class T>
  QDELTA_HOST_DEVICE static RuleOutputs<T> forward(const RuleInputs<T>& in) {
    return Linear::forward(in);
  }
  template <class T>
  QDELTA_HOST_DEVICE static RuleInputs<T> backward(const RuleInputs<T>& in, const RuleOutputs<T>& d) {
    return Linear::backward(in, d);
  }
};

// beta is the step size dt, and g = -A dt.
struct Mamba2 {
  static constexpr RuleTraits traits{
      .name = "mamba2",
      .title = "Mamba2",
      .formula = "S = exp(-A dt) S + dt v k^T",
      .reads_beta = true,
      .learns_decay = true,
      .beta_is_step = true,
  };
  template <class T>
  QDELTA_HOST_DEVICE static RuleOutputs<T> forward(const RuleInputs<T>& in) {
    return {in.g, T(0), T(0), in.beta};
  }
  template <class T>
  QDELTA_HOST_DEVICE static RuleInputs<T> backward(const RuleInputs<T>& /*in*/, const RuleOutputs<T>& d) {
    return {d.log_decay, d.write, T(0), T(0)};
  }
};

// erase = write = e = beta / (1 + beta k.k), the implicit (closed-form) online update.
struct Longhorn {
  static constexpr RuleTraits traits{
      .name = "longhorn",
      .title = "Longhorn",
      .formula = "S = S (I - e k k^T) + e v k^T, e = beta / (1 + beta k.k)",
      .erases = true,
      .reads_beta = true,
  };
  template <class T>
  QDELTA_HOST_DEVICE static RuleOutputs<T> forward(const RuleInputs<T>& in) {
    const T e = in.beta / (T(1) + in.beta * in.k_dot_k);
    return {in.g, e, T(0), e};
  }
  template <class T>
  QDELTA_HOST_DEVICE static RuleInputs<T> backward(const RuleInputs<T>& in, const RuleOutputs<T>& d) {
    const T denominator = T(1) + in.beta * in.k_dot_k;
    const T de = d.erase + d.write;
    const T inverse_square = T(1) / (denominator * denominator);
    return {d.log_decay, de * inverse_square, T(0), -de * in.beta * in.beta * inverse_square};
  }
};

struct Delta {
  static constexpr RuleTraits traits{
      .name = "delta",
      .title = "DeltaNet",
      .formula = "S = S (I - beta k k^T) + beta v k^T",
      .erases = true,
      .reads_beta = true,
  };
  template <class T>
  QDELTA_HOST_DEVICE static RuleOutputs<T> forward(const RuleInputs<T>& in) {
    return {in.g, in.beta, T(0), in.beta};
  }
  template <class T>
  QDELTA_HOST_DEVICE static RuleInputs<T> backward(const RuleInputs<T>& /*in*/, const RuleOutputs<T>& d) {
    return {d.log_decay, d.erase + d.write, T(0), T(0)};
  }
};

// DeltaNet with a learned decay; the operator always applies g, so the arithmetic is the same.
struct GatedDelta {
  static constexpr RuleTraits traits{
      .name = "gated_delta",
      .title = "Gated DeltaNet",
      .formula = "S = alpha S (I - beta k k^T) + beta v k^T",
      .erases = true,
      .reads_beta = true,
      .learns_decay = true,
  };
  template <class T>
  QDELTA_HOST_DEVICE static RuleOutputs<T> forward(const RuleInputs<T>& in) {
    return Delta::forward(in);
  }
  template <class T>
  QDELTA_HOST_DEVICE static RuleInputs<T> backward(const RuleInputs<T>& in, const RuleOutputs<T>& d) {
    return Delta::backward(in, d);
  }
};

// The state is corrected by the error of a mixed key-query prediction.
struct QDelta {
  static constexpr RuleTraits traits{
      .name = "q_delta",
      .title = "Q-Delta",
      .formula = "S = alpha S (I - beta (k + lambda q) k^T) + beta v k^T",
      .erases = true,
      .reads_beta = true,
      .reads_lambda = true,
      .learns_decay = true,
  };
  template <class T>
  QDELTA_HOST_DEVICE static RuleOutputs<T> forward(const RuleInputs<T>& in) {
    return {in.g, in.beta, in.lambda, in.beta};
  }
  template <class T>
  QDELTA_HOST_DEVICE static RuleInputs<T> backward(const RuleInputs<T>& /*in*/, const RuleOutputs<T>& d) {
    return {d.log_decay, d.erase + d.write, d.mix, T(0)};
  }
};

}  // namespace rules

// The table, in the order of the enum.
using RuleTable = std::tuple<rules::Linear, rules::RetNet, rules::Mamba2, rules::Longhorn, rules::Delta,
                             rules::GatedDelta, rules::QDelta>;
inline constexpr std::size_t kRuleCount = std::tuple_size_v<RuleTable>;

inline constexpr std::array<RuleTraits, kRuleCount> kRuleTraits = []<std::size_t... I>(std::index_sequence<I...>) {
  return std::array<RuleTraits, kRuleCount>{std::tuple_element_t<I, RuleTable>::traits...};
}
(std::make_index_sequence<kRuleCount>{});

[[nodiscard]] constexpr const RuleTraits& traits_of(Rule rule) { return kRuleTraits[static_cast<std::size_t>(rule)]; }

[[nodiscard]] constexpr std::optional<Rule> rule_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kRuleCount; ++i) {
    if (kRuleTraits[i].name == name) return static_cast<Rule>(i);
  }
  return std::nullopt;
}

// Both look the rule up at run time and call its function.
template <class T>
QDELTA_HOST_DEVICE RuleOutputs<T> rule_forward(Rule rule, const RuleInputs<T>& in) {
  RuleOutputs<T> out;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((static_cast<std::size_t>(rule) == I ? void(out = std::tuple_element_t<I, RuleTable>::template forward<T>(in))
                                          : void()),
     ...);
  }
  (std::make_index_sequence<kRuleCount>{});
  return out;
}

template <class T>
QDELTA_HOST_DEVICE RuleInputs<T> rule_backward(Rule rule, const RuleInputs<T>& in, const RuleOutputs<T>& d) {
  RuleInputs<T> grad;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((static_cast<std::size_t>(rule) == I ? void(grad = std::tuple_element_t<I, RuleTable>::template backward<T>(in, d))
                                          : void()),
     ...);
  }
  (std::make_index_sequence<kRuleCount>{});
  return grad;
}

}  // namespace qdelta
