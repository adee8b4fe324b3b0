// Inputs at the edges of what they can be.
#pragma once

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/recurrence_case.h"

namespace qdelta::testing {

inline constexpr float kEndless = std::numeric_limits<float>::infinity();

inline void fill(Tensor& tensor, float value) {
  for (float& element : tensor.as<float>()) element = value;
}
inline void scale(Tensor& tensor, float factor) {
  for (float& element : tensor.as<float>()) element *= factor;
}
// Every token's row is that of the first.
inline void repeat_first_token(Tensor& tensor) {
  const std::span<float> values = tensor.as<float>();
  const auto row = static_cast<std::size_t>(tensor.elements() / tensor.shape()[1]);
  for (std::size_t i = row; i < values.size(); ++i) values[i] = values[i - row];
}

struct Extreme {
  std::string name;
  std::function<void(RecurrenceCase&)> make;
  double slack = 1;  // times the usual tolerance
};
// Each of T reflections along one and the same key repeats the same rounding of its length, so the errors do not
// average out: some T * 2^-24 instead of its root.
inline constexpr double kRepeatedRounding = 5;

inline const std::vector<Extreme>& extremes() {
  static const std::vector<Extreme> all{
      {"strong_decay", [](RecurrenceCase& c) { fill(c.g, -50); }},
      {"total_decay", [](RecurrenceCase& c) { fill(c.g, -kEndless); }},
      {"no_decay", [](RecurrenceCase& c) { fill(c.g, 0); }},
      {"decays_of_all_kinds",
       [](RecurrenceCase& c) {
         Random random(1);
         for (float& g : c.g.as<float>()) {
           g = pick<float>(random, {0.0F, -0.0F, -1e-8F, -1e-3F, -1.0F, -20.0F, -88.0F, -104.0F, -1e30F, -kEndless});
         }
       }},
      {"beta_0", [](RecurrenceCase& c) { fill(c.beta, 0); }},
      {"beta_1", [](RecurrenceCase& c) { fill(c.beta, 1); }},
      {"beta_2", [](RecurrenceCase& c) { fill(c.beta, 2); }},
      {"beta_and_lambda_up_to_2",
       [](RecurrenceCase& c) {
         scale(c.beta, 2);
         scale(c.lambda, 2);
       }},
      {"lambda_0", [](RecurrenceCase& c) { fill(c.lambda, 0); }},
      {"identical_keys", [](RecurrenceCase& c) { repeat_first_token(c.k); }},
      {"identical_keys_written_over",
       [](RecurrenceCase& c) {
         repeat_first_token(c.k);
         fill(c.beta, 1);
         fill(c.g, 0);
       }},
      {"identical_keys_reflected",
       [](RecurrenceCase& c) {
         repeat_first_token(c.k);
         fill(c.beta, 2);
         fill(c.lambda, 0);
         fill(c.g, 0);
       },
       kRepeatedRounding},
      {"identical_keys_and_queries_reflected",
       [](RecurrenceCase& c) {
         repeat_first_token(c.k);
         std::memcpy(c.q.data(), c.k.data(), c.k.bytes());
         fill(c.beta, 1);
         fill(c.lambda, 1);
         fill(c.g, 0);
       },
       kRepeatedRounding},
      {"zero_keys", [](RecurrenceCase& c) { fill(c.k, 0); }},
      {"zero_queries", [](RecurrenceCase& c) { fill(c.q, 0); }},
      {"some_zero_rows",
       [](RecurrenceCase& c) {
         const auto row = static_cast<std::size_t>(c.spec.key_dim * c.spec.heads);
         for (std::size_t i = 0; i < c.k.as<float>().size(); ++i) {
           if (i / row % 3 == 0) c.k.as<float>()[i] = 0;
           if (i / row % 4 == 0) c.q.as<float>()[i] = 0;
         }
       }},
      {"zero_values", [](RecurrenceCase& c) { fill(c.v, 0); }},
      {"zero_everything",
       [](RecurrenceCase& c) {
         for (Tensor* tensor : {&c.q, &c.k, &c.v, &c.g, &c.beta, &c.lambda, &c.h0, &c.d_o, &c.d_ht}) fill(*tensor, 0);
       }},
      {"huge_values",
       [](RecurrenceCase& c) {
         scale(c.v, 1e30F);
         scale(c.h0, 1e30F);
       }},
      {"huge_values_on_a_small_state", [](RecurrenceCase& c) { scale(c.v, 1e30F); }},
      {"huge_rows",
       [](RecurrenceCase& c) {
         scale(c.q, 1e15F);
         scale(c.k, 1e15F);
       }},
      {"tiny_rows",
       [](RecurrenceCase& c) {
         scale(c.q, 1e-8F);
         scale(c.k, 1e-8F);
       }},
      {"tiny_values",
       [](RecurrenceCase& c) {
         scale(c.v, 1e-30F);
         scale(c.h0, 1e-30F);
       }},
      {"huge_gradients",
       [](RecurrenceCase& c) {
         scale(c.d_o, 1e30F);
         scale(c.d_ht, 1e30F);
       }},
  };
  return all;
}

inline RecurrenceCase extreme_case(const Extreme& extreme, Rule rule) {
  CaseSpec spec;
  spec.rule = rule;
  spec.tokens = 70;
  spec.heads = 2;
  spec.key_dim = 24;
  spec.value_dim = 20;
  RecurrenceCase problem = random_case(spec, 71);
  extreme.make(problem);
  return problem;
}

}  // namespace qdelta::testing
