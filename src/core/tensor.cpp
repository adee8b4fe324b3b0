#include "core/tensor.h"

#include <algorithm>
#include <cstring>

namespace qdelta {

Shape::Shape(std::initializer_list<std::int64_t> extents)
    : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const std::int64_t> extents) : rank(static_cast<int>(extents.size())) {
  require(extents.size() <= kMaxRank, "a tensor has at most {} dimensions, this one has {}", kMaxRank, extents.size());
  std::copy(extents.begin(), extents.end(), extent.begin());
}

std::int64_t Shape::elements() const noexcept {
  std::int64_t product = 1;
  for (int axis = 0; axis < rank; ++axis) product *= extent[static_cast<std::size_t>(axis)];
  return product;
}

bool Shape::countable() const noexcept {
  constexpr std::int64_t kMost = std::int64_t{1} << 48U;
  std::int64_t product = 1;
  for (int axis = 0; axis < rank; ++axis) {
    const std::int64_t size = extent[static_cast<std::size_t>(axis)];
    if (size < 0 || size > kMost) return false;
    if (size > 0 && product > kMost / size) return false;
    if (size > 0) product *= size;
  }
  return true;
}

std::string Shape::text() const {
  std::string out = "[";
  for (int axis = 0; axis < rank; ++axis) {
    if (axis > 0) out += ", ";
    out += std::to_string(extent[static_cast<std::size_t>(axis)]);
  }
  return out + "]";
}

bool operator==(const Shape& a, const Shape& b) noexcept {
  return a.rank == b.rank && std::equal(a.extent.begin(), a.extent.begin() + a.rank, b.extent.begin());
}

Tensor::Tensor(DType dtype, const Shape& shape)
    : dtype_(dtype), shape_(shape), storage_(bytes_of(dtype, shape.elements())) {}

void Tensor::check_type(DType asked) const {
  require(asked == dtype_, "tensor holds {}, not {}", name_of(dtype_), name_of(asked));
}

namespace {

// Offset, in elements, of the row-major `index` of a strided view.
std::int64_t offset_of(const ConstTensorView& view, std::int64_t index) {
  std::int64_t offset = 0;
  for (int axis = view.shape.rank - 1; axis >= 0; --axis) {
    offset += index % view.shape[axis] * view.step(axis);
    index /= view.shape[axis];
  }
  return offset;
}

template <class T>
T load(const std::byte* base, std::int64_t offset) {
  T value;
  std::memcpy(&value, base + offset * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

double element_as_double(const ConstTensorView& view, std::int64_t index) {
  const std::int64_t offset = offset_of(view, index);
  switch (view.dtype) {
    case DType::f32:
      return load<float>(view.data, offset);
    case DType::f64:
      return load<double>(view.data, offset);
    case DType::bf16:
      return static_cast<float>(load<BFloat16>(view.data, offset));
    default:
      fail(Status::unsupported, "cannot read {} as a number here; use F32, BF16 or F64", name_of(view.dtype));
  }
}

Tensor converted(const ConstTensorView& view, DType dtype) {
  Tensor result(dtype, view.shape);
  const std::int64_t count = result.elements();
  if (view.dtype == dtype) {
    const std::size_t size = size_of(dtype);
    if (bits_of(dtype) < 8) {
      require(view.contiguous(), "elements of type {} are packed and cannot be picked out", name_of(dtype));
      std::memcpy(result.data(), view.data, result.bytes());
      return result;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(result.data() + static_cast<std::size_t>(i) * size,
                  view.data + offset_of(view, i) * static_cast<std::int64_t>(size), size);
    }
    return result;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double value = element_as_double(view, i);
    switch (dtype) {
      case DType::f32:
        result.as<float>()[at] = static_cast<float>(value);
        break;
      case DType::f64:
        result.as<double>()[at] = value;
        break;
      case DType::bf16:
        result.as<BFloat16>()[at] = BFloat16(static_cast<float>(value));
        break;
      default:
        fail(Status::unsupported, "cannot convert {} to {}", name_of(view.dtype), name_of(dtype));
    }
  }
  return result;
}

std::vector<std::int64_t> integers_of(const ConstTensorView& view, std::string_view name) {
  require(view.shape.rank == 1, "{} has shape {}, expected one dimension", name, view.shape.text());
  require(view.dtype == DType::i32 || view.dtype == DType::i64, "{} is {}, expected I32 or I64", name,
          name_of(view.dtype));
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < view.extent(0); ++i) {
    const std::int64_t offset = i * view.step(0);
    out.push_back(view.dtype == DType::i32 ? load<std::int32_t>(view.data, offset)
                                           : load<std::int64_t>(view.data, offset));
  }
  return out;
}

}  // namespace qdelta
