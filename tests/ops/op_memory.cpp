#include "ops/op_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "core/error.h"

namespace qdelta::testing {
namespace {

constexpr std::byte kGuard{0xa5};
constexpr std::byte kNaN{0xff};

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}
template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

void store_as(DType dtype, std::byte* to, double value) {
  switch (dtype) {
    case DType::f32:
      return store(to, static_cast<float>(value));
    case DType::bf16:
      return store(to, BFloat16(static_cast<float>(value)));
    case DType::i32:
      return store(to, static_cast<std::int32_t>(value));
    case DType::i64:
      return store(to, static_cast<std::int64_t>(value));
    default:
      fail(Status::internal, "no operand is {}", name_of(dtype));
  }
}
double load_as(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::f32:
      return load<float>(from);
    case DType::bf16:
      return static_cast<float>(load<BFloat16>(from));
    case DType::i32:
      return load<std::int32_t>(from);
    case DType::i64:
      return static_cast<double>(load<std::int64_t>(from));
    default:
      fail(Status::internal, "no operand is {}", name_of(dtype));
  }
}

// visit(offset in the memory in bytes, index) for every element. Only rows are apart.
template <class Visit>
void for_each_element(const TensorView& view, const std::byte* start, const Visit& visit) {
  const std::int64_t columns = view.shape.rank == 2 ? view.extent(1) : view.shape.elements();
  const std::int64_t rows = columns == 0 ? 0 : view.shape.elements() / columns;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = view.data - start + (view.shape.rank == 2 ? r * view.step(0) * size : 0);
    for (std::int64_t c = 0; c < columns; ++c)
      visit(static_cast<std::size_t>(row + c * size), static_cast<std::size_t>(r * columns + c));
  }
}

}  // namespace

double rounded_to(DType dtype, double value) {
  if (dtype == DType::bf16) return static_cast<float>(BFloat16(static_cast<float>(value)));
  return dtype == DType::f32 ? static_cast<float>(value) : value;
}

GuardedMemory::GuardedMemory(const Device& device, std::size_t bytes)
    : device_(device), size_(bytes), buffer_(device, bytes + 2 * kMargin) {
  std::vector<std::byte> image(bytes + 2 * kMargin, kGuard);
  std::fill_n(image.begin() + kMargin, bytes, kNaN);
  qdelta::upload(device_, buffer_.data(), image.data(), image.size());
  synchronize(device_);
}

void GuardedMemory::upload(const std::vector<std::byte>& image) {
  qdelta::upload(device_, buffer_.data() + kMargin, image.data(), image.size());
  synchronize(device_);
}

std::vector<std::byte> GuardedMemory::download() const {
  std::vector<std::byte> image(size_);
  qdelta::download(device_, image.data(), buffer_.data() + kMargin, size_);
  return image;
}

void GuardedMemory::expect_guards(const std::string& what) const {
  std::vector<std::byte> margin(kMargin);
  for (const std::size_t start : {std::size_t{0}, kMargin + size_}) {
    qdelta::download(device_, margin.data(), buffer_.data() + start, kMargin);
    EXPECT_TRUE(std::all_of(margin.begin(), margin.end(), [](std::byte byte) { return byte == kGuard; }))
        << "memory " << (start == 0 ? "before " : "behind ") << what << " was written";
  }
}

PlacedOperands::PlacedOperands(const Device& device, const OpCase& problem, const RowPlacement& place)
    : device_(device) {
  host = &host_;
  for (const Operand& operand : problem.operands) {
    if (operand.on_host || (operand.gpu_only && device.gpu == nullptr)) continue;
    put(operand, operand.placed ? place : RowPlacement{});
  }
}

void PlacedOperands::put(const Operand& operand, const RowPlacement& place) {
  const DType dtype = device_.gpu == nullptr && operand.dtype == kBF16 ? kF32 : operand.dtype;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  TensorView view(nullptr, dtype, operand.shape);
  std::int64_t elements = operand.shape.elements();
  if (operand.shape.rank == 2) {
    view.stride[0] += place.padding;
    elements = view.stride[0] * view.extent(0);
  }
  std::vector<std::byte> image(static_cast<std::size_t>((elements + place.offset) * size), kNaN);
  auto memory = std::make_unique<GuardedMemory>(device_, image.size());
  std::byte* start = memory->bytes().data();
  view.data = start + place.offset * size;
  if (operand.use != Use::out) {
    for_each_element(view, start, [&](std::size_t there, std::size_t index) {
      store_as(dtype, image.data() + there, operand.initial[index]);
    });
    memory->upload(image);
  }
  placed_.emplace(operand.name, Placed{&operand, view, std::move(memory), std::move(image)});
}

TensorView PlacedOperands::operator[](const std::string& name) const {
  const auto found = placed_.find(name);
  return found == placed_.end() ? TensorView() : found->second.view;
}

OpResults PlacedOperands::results() const {
  OpResults out;
  out.values = host_;
  for (const auto& [name, found] : placed_) {
    const Placed& placed = found;
    std::vector<std::byte> image = placed.memory->download();
    std::vector<double>& values = out.values[name];
    values.resize(static_cast<std::size_t>(placed.view.shape.elements()));
    const std::byte* start = placed.memory->bytes().data();
    const std::size_t size = size_of(placed.view.dtype);
    out.bits[name] = image;
    for_each_element(placed.view, start, [&](std::size_t there, std::size_t index) {
      values[index] = load_as(placed.view.dtype, image.data() + there);
      if (placed.operand->use != Use::in) std::memcpy(image.data() + there, placed.image.data() + there, size);
    });
    EXPECT_TRUE(image == placed.image) << (placed.operand->use == Use::in ? "" : "memory between the rows of ") << name
                                       << " was written";
    placed.memory->expect_guards(name);
  }
  return out;
}

void run_call(const Device& device, const OpCall& call, PlacedOperands& tensors) {
  std::size_t bytes = 0;
  try {
    Workspace none{std::span<std::byte>()};
    call(device, tensors, none);  // refused before it does anything, where it needs scratch memory
    return;
  } catch (const Error& error) {
    const std::size_t found = std::string_view(error.what()).find("the workspace has 0 bytes, ");
    if (found == std::string_view::npos ||
        std::sscanf(error.what() + found, "the workspace has 0 bytes, %zu are needed", &bytes) != 1)
      throw;
  }
  GuardedMemory memory(device, bytes);
  Workspace workspace(memory.bytes());
  call(device, tensors, workspace);
  memory.expect_guards("the workspace");
}

}  // namespace qdelta::testing
