#include "capi/dlpack_view.h"

#include <cstdint>
#include <optional>
#include <string>

#include "capi/options.h"

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

std::string text_of(const DLDevice& device) {
  switch (number_of(device.device_type)) {
    case kDLCPU:
      return "the CPU";
    case kDLCUDA:
      return fmt::format("CUDA device {}", device.device_id);
    default:
      return fmt::format("DLPack device type {}", number_of(device.device_type));
  }
}

// Whether what computes on `device` can read and write memory of `memory`.
bool reaches(const DLDevice& device, const DLDevice& memory) {
  const int kind = number_of(memory.device_type);
  if (kind == kDLCUDAManaged) return true;
  if (number_of(device.device_type) == kDLCUDA) return kind == kDLCUDA && memory.device_id == device.device_id;
  return kind == kDLCPU || kind == kDLCUDAHost;
}

// Whether every element's address can be computed without overflow.
bool reachable(const TensorView& view) {
  std::int64_t low = 0;
  auto high = static_cast<std::int64_t>(size_of(view.dtype));
  for (int axis = 0; axis < view.shape.rank; ++axis) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(view.shape[axis], view.step(axis), &reach) ||
        __builtin_mul_overflow(reach, static_cast<std::int64_t>(size_of(view.dtype)), &reach)) {
      return false;
    }
    if (__builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) return false;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  return address >= 0 - static_cast<std::uintptr_t>(low) && UINTPTR_MAX - address >= static_cast<std::uintptr_t>(high);
}

}  // namespace

TensorView view_of(const DLTensor* tensor, std::string_view name, const DLDevice& device) {
  TensorView view;
  if (tensor == nullptr) return view;
  if (!reaches(device, tensor->device)) {
    fail(Status::unsupported, "{} is on {}, expected on {}", name, text_of(tensor->device), text_of(device));
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
  require(shape.countable(), "{} has shape {}, more elements than can be counted", name, shape.text());
  static std::byte nowhere{};  // an empty tensor may have no address, yet it was given
  require(tensor->byte_offset <= UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(tensor->data),
          "{} has a byte_offset of {}, which leads out of memory", name, tensor->byte_offset);
  std::byte* data = tensor->data == nullptr ? nullptr : static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
  require(data != nullptr || shape.elements() == 0, "{} has a null data pointer", name);
  view = TensorView(data == nullptr ? &nowhere : data, *dtype, shape);
  require(shape.elements() == 0 || reinterpret_cast<std::uintptr_t>(data) % size_of(*dtype) == 0,
          "{} is not aligned to its element size of {} bytes", name, size_of(*dtype));
  if (shape.elements() == 0) return view;
  if (tensor->strides != nullptr) {
    for (int axis = 0; axis < tensor->ndim; ++axis) {
      // Along an axis of one element there is no step to take: its stride may be anything.
      if (shape[axis] > 1) view.stride[static_cast<std::size_t>(axis)] = tensor->strides[axis];
    }
  }
  require(reachable(view), "{} has strides that lead out of memory", name);
  return view;
}

}  // namespace qdelta
