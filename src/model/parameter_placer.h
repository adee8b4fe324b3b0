// Where tensors lie in the flat array of a model's parameters, and how they start. A module places its own: it names
// each tensor, says its shape and gets a Slot.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/random.h"
#include "core/tensor.h"

namespace qdelta {

// The flat arrays where kernels can reach them.
struct Weights {
  std::span<const float> values;
  const BFloat16* rounded = nullptr;   // `values` in bfloat16, where activations are; null: matrices are float32, too
  std::span<const float> constants{};  // tensors that are no parameters: the same in every model of a config
};

// A place in a flat array.
struct Slot {
  std::int64_t offset = -1;  // in floats; -1: this model has no such tensor
  Shape shape;

  [[nodiscard]] bool exists() const { return offset >= 0; }
  [[nodiscard]] TensorView in(std::span<float> array) const;
  [[nodiscard]] ConstTensorView in(std::span<const float> array) const;
  // Of the weights: as float32, or as activations are multiplied with it.
  [[nodiscard]] ConstTensorView in(const Weights& weights) const { return in(weights.values); }
  [[nodiscard]] ConstTensorView matrix_in(const Weights& weights) const;
};

// Writes the values that a tensor starts with. The random numbers are the tensor's own.
using Initializer = std::function<void(Random&, std::span<float>)>;

namespace initial {

[[nodiscard]] Initializer constant(double value);
[[nodiscard]] Initializer normal(double deviation);
[[nodiscard]] Initializer uniform(std::int64_t inputs);  // within 1 / sqrt(inputs)
// The inverse of softplus, so that a step size softplus(bias) starts log-uniform in (0.001, 0.1).
[[nodiscard]] Initializer step_bias();

}  // namespace initial

struct NamedSlot {
  std::string name;  // as published
  Slot slot;
  Initializer initializer;
};

// Gives out places one after the other.
class ParameterPlacer {
 public:
  ParameterPlacer(std::vector<NamedSlot>& tensors, std::vector<float>& constants)
      : tensors_(tensors), constants_(constants) {}

  Slot tensor(const std::string& name, const Shape& shape, Initializer initializer);
  // Right behind the last one: tensors that are used in one product lie side by side, and are one matrix.
  Slot adjacent(const std::string& name, const Shape& shape, Initializer initializer);
  // Values in Weights::constants.
  Slot constant(const Shape& shape, const std::vector<float>& values);

  [[nodiscard]] std::int64_t end() const { return end_; }
  void skip(std::int64_t floats) { end_ += floats; }
  void align();

 private:
  std::vector<NamedSlot>& tensors_;
  std::vector<float>& constants_;
  std::int64_t end_ = 0;
};

}  // namespace qdelta
