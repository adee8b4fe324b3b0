#include "model/parameter_placer.h"

#include <cmath>
#include <utility>

namespace qdelta {
namespace {

constexpr std::int64_t kSlotAlignment = 16;  // floats: a cache line

}  // namespace

TensorView Slot::in(std::span<float> array) const {
  if (!exists()) return {};
  return {reinterpret_cast<std::byte*>(array.data() + offset), DType::f32, shape};
}

ConstTensorView Slot::in(std::span<const float> array) const {
  if (!exists()) return {};
  return {reinterpret_cast<const std::byte*>(array.data() + offset), DType::f32, shape};
}

ConstTensorView Slot::matrix_in(const Weights& weights) const {
  if (weights.rounded == nullptr || !exists()) return in(weights.values);
  return {reinterpret_cast<const std::byte*>(weights.rounded + offset), DType::bf16, shape};
}

namespace initial {
namespace {

template <class Make>
Initializer each(Make make) {
  return [make](Random& random, std::span<float> values) {
    for (float& value : values) value = static_cast<float>(make(random));
  };
}

}  // namespace

Initializer constant(double value) {
  return each([value](Random& /*random*/) { return value; });
}

Initializer normal(double deviation) {
  return each([deviation](Random& random) { return deviation * random.normal(); });
}

Initializer uniform(std::int64_t inputs) {
  return each([inputs](Random& random) { return (2 * random.uniform() - 1) / std::sqrt(static_cast<double>(inputs)); });
}

Initializer step_bias() {
  return each([](Random& random) {
    const double dt = std::exp(std::log(0.001) + random.uniform() * (std::log(0.1) - std::log(0.001)));
    return dt + std::log(-std::expm1(-dt));
  });
}

}  // namespace initial

Slot ParameterPlacer::tensor(const std::string& name, const Shape& shape, Initializer initializer) {
  align();
  return adjacent(name, shape, std::move(initializer));
}

Slot ParameterPlacer::adjacent(const std::string& name, const Shape& shape, Initializer initializer) {
  const Slot slot{end_, shape};
  end_ += shape.elements();
  tensors_.push_back({name, slot, std::move(initializer)});
  return slot;
}

Slot ParameterPlacer::constant(const Shape& shape, const std::vector<float>& values) {
  require(static_cast<std::int64_t>(values.size()) == shape.elements(), "{} values for a constant of shape {}",
          values.size(), shape.text());
  const Slot slot{round_up(static_cast<std::int64_t>(constants_.size()), kSlotAlignment), shape};
  constants_.resize(static_cast<std::size_t>(slot.offset));
  constants_.insert(constants_.end(), values.begin(), values.end());
  return slot;
}

void ParameterPlacer::align() { end_ = round_up(end_, kSlotAlignment); }

}  // namespace qdelta
