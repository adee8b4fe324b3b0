// One harness for the ops of kernels/layers.h. A case is an op, a shape and types: its operands, one call forward and
// one backward, and the same two as plain loops in double precision (the oracle). check_op() then
//
//   - compares the oracle's gradients with differences of its forward,
//   - runs the calls on every device there is, with dense, padded and misaligned rows, and compares with the oracle
//     (and a GPU with the CPU as well),
//   - repeats them: the same bits again on any device, and for any number of threads on the CPU.
//
// Outputs and scratch memory start as NaN. What is only read, the gaps between rows and the memory around operands and
// scratch must stay as they are. A gradient that is added to starts with random numbers. A program prints the largest
// error of each result at its end. On the CPU all activations are float32: bfloat16 ones hold the rounded numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/workspace.h"

namespace qdelta::testing {

inline constexpr DType kF32 = DType::f32;
inline constexpr DType kBF16 = DType::bf16;

// Operands by name, row-major, in double precision (integers too).
using OpValues = std::map<std::string, std::vector<double>>;

enum class Use {
  in,    // read, and must not change
  out,   // written
  sum,   // added to
  inout  // read and replaced
};

// How far a result may be from what is expected, in the Euclidean norm, relative to what is expected.
struct Bound {
  double relative = 0;     // 0: 5e-6, and 4e-3 for a result in bfloat16
  std::int64_t terms = 0;  // a sum of so many terms, which may nearly cancel: 2e-6, relative to their size as well
  double absolute = -1;    // each element on its own, instead; 0: exact
};
inline constexpr Bound kExact{.absolute = 0};

struct Operand {
  std::string name;
  Use use = Use::in;
  DType dtype = kF32;
  Shape shape;
  std::vector<double> initial{};  // rounded to dtype
  Bound bound{};
  bool placed = false;    // rows may be apart and misaligned
  bool gpu_only = false;  // missing on the CPU
  bool on_host = false;   // a number that the call returns
};

// The operands on a device, for the calls of a case.
class OpTensors {
 public:
  virtual ~OpTensors() = default;
  // Empty where the case has no such operand.
  [[nodiscard]] virtual TensorView operator[](const std::string& name) const = 0;
  template <class T>
  [[nodiscard]] std::span<T> span(const std::string& name) const {
    const TensorView view = (*this)[name];
    if (!view) return {};
    return {reinterpret_cast<T*>(view.data), static_cast<std::size_t>(view.shape.elements())};
  }
  OpValues* host = nullptr;  // for operands `on_host`
};

using OpCall = std::function<void(const Device&, OpTensors&, Workspace&)>;
using OpOracle = std::function<void(OpValues&)>;

// Its numbers depend on `op` and `shape` only, so that they are the same on every machine and for every type.
struct OpCase {
  std::string op;
  std::string shape;
  std::vector<Operand> operands{};
  // Each is one call, so that its scratch memory can be measured exactly. Either may be missing.
  OpCall forward{}, backward{};
  OpOracle oracle_forward{}, oracle_backward{};
  // The gradient of an operand x is dx. Where `differences` is set it is compared with differences of the forward.
  bool differences = true;
  bool listed = true;  // in the table of errors
  // More to expect of the results, on each device.
  std::function<void(const OpValues&)> also{};

  // Random normal numbers times `scale`. Matrices may have their rows apart.
  Operand& in(const std::string& name, DType dtype, const Shape& extents, double scale = 1) {
    return add(name, Use::in, dtype, extents, scale);
  }
  Operand& out(const std::string& name, DType dtype, const Shape& extents, const Bound& bound = {}) {
    return add(name, Use::out, dtype, extents, 0, bound);
  }
  Operand& sum(const std::string& name, DType dtype, const Shape& extents, const Bound& bound = {}) {
    return add(name, Use::sum, dtype, extents, 1, bound);
  }
  Operand& inout(const std::string& name, DType dtype, const Shape& extents, double scale = 1,
                 const Bound& bound = {}) {
    return add(name, Use::inout, dtype, extents, scale, bound);
  }
  // Integers as they are.
  template <class T>
  Operand& integers(const std::string& name, DType dtype, const std::vector<T>& values) {
    Operand& made = add(name, Use::in, dtype, {static_cast<std::int64_t>(values.size())}, 0);
    made.initial.assign(values.begin(), values.end());
    return made;
  }
  Operand& returned(const std::string& name, const Bound& bound) {
    Operand& made = add(name, Use::out, DType::f64, {1}, 0, bound);
    made.on_host = true;
    return made;
  }

 private:
  Operand& add(const std::string& name, Use use, DType dtype, const Shape& extents, double scale,
               const Bound& bound = {});
};

void check_op(const OpCase& problem);

// Whether this machine has a GPU that the build can use.
[[nodiscard]] bool gpu_here();
// The types of activations that the devices here have.
[[nodiscard]] std::vector<DType> activation_types();
// "f32", "bf16" and so on, for the names of cases.
[[nodiscard]] std::string text_of(DType dtype);

// Index of row-major matrices in oracles.
[[nodiscard]] inline std::size_t at(std::int64_t row, std::int64_t columns, std::int64_t column) {
  return static_cast<std::size_t>(row * columns + column);
}
[[nodiscard]] double sigmoid(double x);

}  // namespace qdelta::testing
