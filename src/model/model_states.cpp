#include "model/model_states.h"

#include <fmt/format.h>

#include "core/error.h"
#include "kernels/copy_many.h"
#include "model/mixer_types.h"

namespace qdelta {
namespace {

Shape pool_shape(std::int64_t count, const Shape& slot) {
  Shape shape;
  shape.rank = slot.rank + 1;
  shape.extent[0] = count;
  for (int axis = 0; axis < slot.rank; ++axis) shape.extent[static_cast<std::size_t>(axis) + 1] = slot[axis];
  return shape;
}

std::size_t bytes_of(const ConstTensorView& view) {
  return static_cast<std::size_t>(view.shape.elements()) * size_of(view.dtype);
}

}  // namespace

ModelStates::ModelStates(const ModelConfig& config, std::int64_t count, const Device& device)
    : device_(device), count_(count), layer_begin_{0} {
  const std::vector<std::unique_ptr<Mixer>> mixers = make_mixers(config);
  for (std::size_t i = 0; i < mixers.size(); ++i) {
    for (const StateTensor& tensor : mixers[i]->state_tensors()) {
      pools_.push_back(
          {fmt::format("{}.{}", tensor.name, i), DeviceTensor(device_, DType::f32, pool_shape(count_, tensor.shape))});
      views_.push_back(pools_.back().tensor.view());
    }
    layer_begin_.push_back(views_.size());
  }
}

std::size_t ModelStates::bytes() const {
  std::size_t sum = 0;
  for (const Pool& pool : pools_) sum += pool.tensor.bytes();
  return sum;
}

void ModelStates::clear(std::int64_t slot) {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const TensorView view = slot_of(i, slot);
    qdelta::clear(device_, view.data, bytes_of(view));
  }
}

void ModelStates::copy(const ModelStates& from, std::int64_t slot, std::int64_t to) {
  std::vector<CopyPart> within;
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const TensorView view = slot_of(i, to);
    const ConstTensorView source = from.slot_of(i, slot);
    if (device_.gpu == from.device_.gpu) {
      within.push_back({.to = view.data, .from = source.data, .bytes = bytes_of(view)});
    } else if (device_.gpu == nullptr) {
      download(from.device_, view.data, source.data, bytes_of(view));
    } else {
      upload(device_, view.data, source.data, bytes_of(view));
    }
  }
  copy_many(device_, within);
}

TensorView ModelStates::slot_of(std::size_t pool, std::int64_t slot) {
  require(slot >= 0 && slot < count_, "there is no state {} in a pool of {}", slot, count_);
  TensorView view = views_[pool];
  view.data += slot * view.step(0) * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape.extent[0] = 1;
  return view;
}

ConstTensorView ModelStates::slot_of(std::size_t pool, std::int64_t slot) const {
  return const_cast<ModelStates*>(this)->slot_of(pool, slot);
}

std::span<const TensorView> ModelStates::layer(std::size_t index) const {
  return std::span(views_).subspan(layer_begin_[index], layer_begin_[index + 1] - layer_begin_[index]);
}

}  // namespace qdelta
