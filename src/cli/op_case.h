// The input of `qdelta op`: tensors and settings from one safetensors file.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "kernels/recurrence.h"

namespace qdelta {

// What the command line says; where it is silent, the file's metadata does (rule, scale, qk_l2norm).
struct OpSettings {
  std::optional<std::string> rule;
  std::optional<float> scale;
  std::optional<bool> qk_l2norm;
  DType dtype = DType::f32;  // of q, k, v and do; everything else is computed in f32
};

// Holds what its views point into, so it cannot be copied.
class OpCase {
 public:
  // Throws with the file's name and the tensor's when something is missing or has a shape or type it cannot have.
  OpCase(const std::string& path, const OpSettings& settings, bool backward);
  OpCase(const OpCase&) = delete;
  OpCase& operator=(const OpCase&) = delete;

  RecurrenceInputs in;
  ConstTensorView d_o, d_ht;  // for the backward only

  [[nodiscard]] Shape gate_shape() const;   // [B, T, HV]
  [[nodiscard]] Shape state_shape() const;  // [N, HV, K, V]

 private:
  [[nodiscard]] const std::string* setting(const std::string& key) const;
  void read_settings(const OpSettings& settings);
  // The tensor as `dtype`; without a copy where it already is. Missing: an error, or an empty view if it is optional.
  ConstTensorView tensor(std::string_view name, DType dtype);
  ConstTensorView optional_tensor(std::string_view name, DType dtype);

  SafetensorsFile file_;
  std::deque<Tensor> converted_;
  std::vector<std::int64_t> offsets_;
};

// "linear, retnet, ...": for messages and help.
[[nodiscard]] std::string rule_names();

}  // namespace qdelta
