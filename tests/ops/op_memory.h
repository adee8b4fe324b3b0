// Operands of a case in the memory of a device, in whatever placement, with guards.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "ops/op_harness.h"

namespace qdelta::testing {

// Elements before the first one and after each row.
struct RowPlacement {
  std::int64_t offset = 0, padding = 0;
};

// Memory full of NaN whatever type it is read as, with guards at both ends.
class GuardedMemory {
 public:
  GuardedMemory(const Device& device, std::size_t bytes);
  [[nodiscard]] std::span<std::byte> bytes() { return {buffer_.data() + kMargin, size_}; }
  void upload(const std::vector<std::byte>& image);
  [[nodiscard]] std::vector<std::byte> download() const;
  void expect_guards(const std::string& what) const;

 private:
  static constexpr std::size_t kMargin = 1024;  // a multiple of the alignment

  Device device_;
  std::size_t size_;
  DeviceBuffer buffer_;
};

// What a run leaves: values, and the bits they have in memory.
struct OpResults {
  OpValues values;
  std::map<std::string, std::vector<std::byte>> bits;
};

class PlacedOperands final : public OpTensors {
 public:
  PlacedOperands(const Device& device, const OpCase& problem, const RowPlacement& place);
  [[nodiscard]] TensorView operator[](const std::string& name) const override;
  // Also expects that nothing else was written.
  [[nodiscard]] OpResults results() const;

 private:
  struct Placed {
    const Operand* operand;
    TensorView view;
    std::unique_ptr<GuardedMemory> memory;
    std::vector<std::byte> image;  // as it was uploaded
  };
  void put(const Operand& operand, const RowPlacement& place);

  Device device_;
  std::map<std::string, Placed> placed_;
  OpValues host_;
};

// One call with exactly the scratch memory that it asks for.
void run_call(const Device& device, const OpCall& call, PlacedOperands& tensors);

// `value` as `dtype` has it.
[[nodiscard]] double rounded_to(DType dtype, double value);

}  // namespace qdelta::testing
