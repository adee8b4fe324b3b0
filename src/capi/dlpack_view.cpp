#include "capi/dlpack_view.h"

#include <optional>

namespace qdelta {
namespace {

std::optional<DType> dtype_from(const DLDataType& type) {
  if (type.lanes != 1) return std::nullopt;
  switch (type.code) {
    case kDLFloat:
      if (type.bits == 32) return DType::f32;
      if (type.bits == 64) return DType::f64;
      if (type.bits == 16) return DType::f16;
      return std::nullopt;
    case kDLBfloat:
      return type.bits == 16 ? std::optional(DType::bf16) : std::nullopt;
    case kDLInt:
      if (type.bits == 32) return DType::i32;
      if (type.bits == 64) return DType::i64;
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace

TensorView view_of(const DLTensor* tensor, std::string_view name) {
  TensorView view;
  if (tensor == nullptr) return view;
  const DLDeviceType device = tensor->device.device_type;
  if (device != kDLCPU && device != kDLCUDAHost) {
    fail(Status::unsupported, "{} is on DLPack device type {}, but this build computes on the CPU", name,
         static_cast<int>(device));
  }
  const std::optional<DType> dtype = dtype_from(tensor->dtype);
  if (!dtype) {
    fail(Status::unsupported, "{} has DLPack type (code {}, {} bits, {} lanes), which is not supported", name,
         static_cast<int>(tensor->dtype.code), static_cast<int>(tensor->dtype.bits),
         static_cast<int>(tensor->dtype.lanes));
  }
  require(tensor->ndim >= 0 && tensor->ndim <= kMaxRank, "{} has {} dimensions, at most {} are supported", name,
          tensor->ndim, kMaxRank);
  require(tensor->ndim == 0 || tensor->shape != nullptr, "{} has no shape", name);
  for (int axis = 0; axis < tensor->ndim; ++axis) {
    require(tensor->shape[axis] >= 0, "{} has a negative extent {} in dimension {}", name, tensor->shape[axis], axis);
  }
  const Shape shape(std::span<const std::int64_t>(tensor->shape, static_cast<std::size_t>(tensor->ndim)));
  static std::byte nowhere{};  // an empty tensor may have no address, yet it was given
  std::byte* data = tensor->data == nullptr ? nullptr : static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
  require(data != nullptr || shape.elements() == 0, "{} has a null data pointer", name);
  view = TensorView(data == nullptr ? &nowhere : data, *dtype, shape);
  require(shape.elements() == 0 || reinterpret_cast<std::uintptr_t>(data) % size_of(*dtype) == 0,
          "{} is not aligned to its element size of {} bytes", name, size_of(*dtype));
  if (tensor->strides != nullptr) {
    for (int axis = 0; axis < tensor->ndim; ++axis) view.stride[static_cast<std::size_t>(axis)] = tensor->strides[axis];
  }
  return view;
}

}  // namespace qdelta
