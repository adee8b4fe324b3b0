// What the tests of the C interface share: DLPack tensors of any layout, and a problem with its C++ results.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/recurrence.h"
#include "qdelta/qdelta.h"
#include "testing.h"

namespace qdelta::testing {

inline DLDataType dl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {kDLFloat, 32, 1};
    case DType::f64:
      return {kDLFloat, 64, 1};
    case DType::bf16:
      return {kDLBfloat, 16, 1};
    case DType::i32:
      return {kDLInt, 32, 1};
    default:
      return {kDLInt, 64, 1};
  }
}

struct Layout {
  bool strides = false;          // false: a null pointer, which stands for row-major
  bool swapped = false;          // axes 1 and 2 change places in memory
  std::int64_t step = 1;         // between elements of the last axis
  std::int64_t byte_offset = 0;  // of the first element, a multiple of its size
};

// A DLTensor with memory of its own, which is filled with a pattern wherever the tensor has no element.
class DlTensor {
 public:
  DlTensor(DType dtype, const Shape& shape, const Layout& layout = {})
      : dtype_(dtype), shape_(shape), extents_(shape.extent.begin(), shape.extent.begin() + shape.rank) {
    std::vector<int> order(extents_.size());
    std::iota(order.begin(), order.end(), 0);
    if (layout.swapped && shape.rank >= 3) std::swap(order[1], order[2]);
    strides_.resize(extents_.size());
    std::int64_t step = layout.step;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
      strides_[static_cast<std::size_t>(*axis)] = step;
      step *= shape[*axis];
    }
    const auto bytes = static_cast<std::size_t>(step) * size_of(dtype) + static_cast<std::size_t>(layout.byte_offset);
    memory_ = AlignedBuffer(bytes + kAlignment);
    std::memset(memory_.data(), kPattern, memory_.size());
    tensor_.data = memory_.data();
    tensor_.device = {kDLCPU, 0};
    tensor_.ndim = shape.rank;
    tensor_.dtype = dl_type(dtype);
    tensor_.shape = extents_.data();
    tensor_.strides = layout.strides ? strides_.data() : nullptr;
    tensor_.byte_offset = static_cast<std::uint64_t>(layout.byte_offset);
  }
  explicit DlTensor(const Tensor& values, const Layout& layout = {})
      : DlTensor(values.dtype(), values.shape(), layout) {
    const std::size_t size = size_of(dtype_);
    for (std::int64_t i = 0; i < values.elements(); ++i) {
      std::memcpy(element(i), values.data() + static_cast<std::size_t>(i) * size, size);
    }
  }
  DlTensor(const DlTensor&) = delete;
  DlTensor& operator=(const DlTensor&) = delete;

  [[nodiscard]] DLTensor* get() { return &tensor_; }

  // The elements in row-major order.
  [[nodiscard]] Tensor values() {
    Tensor result(dtype_, shape_);
    const std::size_t size = size_of(dtype_);
    for (std::int64_t i = 0; i < result.elements(); ++i) {
      std::memcpy(result.data() + static_cast<std::size_t>(i) * size, element(i), size);
    }
    return result;
  }
  // Whether all memory that belongs to no element still has its pattern.
  [[nodiscard]] bool surroundings_untouched() {
    std::vector<bool> ours(memory_.size(), false);
    for (std::int64_t i = 0; i < shape_.elements(); ++i) {
      const auto at = static_cast<std::size_t>(element(i) - memory_.data());
      for (std::size_t b = 0; b < size_of(dtype_); ++b) ours[at + b] = true;
    }
    for (std::size_t at = 0; at < memory_.size(); ++at) {
      if (!ours[at] && memory_.data()[at] != std::byte{kPattern}) return false;
    }
    return true;
  }

 private:
  static constexpr unsigned char kPattern = 0xa5;

  std::byte* element(std::int64_t index) {
    std::int64_t offset = 0;
    for (std::size_t axis = extents_.size(); axis-- > 0;) {
      offset += index % extents_[axis] * strides_[axis];
      index /= extents_[axis];
    }
    return memory_.data() + tensor_.byte_offset + offset * static_cast<std::int64_t>(size_of(dtype_));
  }

  DType dtype_;
  Shape shape_;
  std::vector<std::int64_t> extents_, strides_;
  AlignedBuffer memory_;
  DLTensor tensor_{};
};

struct Extents {
  std::int64_t B = 2, T = 37, H = 2, HV = 4, K = 24, V = 40;
};

inline Tensor random_tensor(Random& random, DType dtype, const Shape& shape, double low, double high) {
  Tensor result(DType::f32, shape);
  for (float& value : result.as<float>()) value = static_cast<float>(low + (high - low) * random.uniform());
  return converted(std::as_const(result).view(), dtype);
}

// Inputs and output gradients, by the names of the C structs, and what the C++ kernels make of them.
struct Problem {
  Extents at;
  DType dtype = DType::f32;
  qdelta_options options{};
  std::vector<std::int64_t> offsets;  // of packed sequences
  std::map<std::string, Tensor> tensors;

  explicit Problem(Rule rule, DType dtype_ = DType::f32, const Extents& extents = {},
                   std::vector<std::int64_t> offsets_ = {})
      : at(extents), dtype(dtype_), offsets(std::move(offsets_)) {
    qdelta_options_init(&options);
    options.rule = static_cast<qdelta_rule>(rule);
    options.qk_l2norm = 1;
    Random random(static_cast<std::uint64_t>(at.T * 1000 + at.K) * kRuleCount + static_cast<std::uint64_t>(rule));
    const Shape key{at.B, at.T, at.H, at.K}, value{at.B, at.T, at.HV, at.V}, gate{at.B, at.T, at.HV};
    tensors["q"] = random_tensor(random, dtype, key, -1, 1);
    tensors["k"] = random_tensor(random, dtype, key, -1, 1);
    tensors["v"] = random_tensor(random, dtype, value, -1, 1);
    tensors["g"] = random_tensor(random, DType::f32, gate, -0.2, 0);
    tensors["beta"] = random_tensor(random, DType::f32, gate, 0, 1);
    tensors["lambda"] = random_tensor(random, DType::f32, gate, 0, 1);
    tensors["h0"] = random_tensor(random, DType::f32, states(), -1, 1);
    tensors["d_o"] = random_tensor(random, dtype, value, -1, 1);
    tensors["d_ht"] = random_tensor(random, DType::f32, states(), -1, 1);
  }

  [[nodiscard]] Shape states() const {
    return {offsets.empty() ? at.B : static_cast<std::int64_t>(offsets.size()) - 1, at.HV, at.K, at.V};
  }
  [[nodiscard]] Shape shape_like(const std::string& gradient) const { return tensors.at(gradient.substr(1)).shape(); }

  [[nodiscard]] RecurrenceInputs inputs() const {
    RecurrenceInputs in;
    in.rule = static_cast<Rule>(options.rule);
    in.scale = options.scale != 0 ? options.scale : 1.0F / std::sqrt(static_cast<float>(at.K));
    in.qk_l2norm = options.qk_l2norm != 0;
    in.q = tensors.at("q").view();
    in.k = tensors.at("k").view();
    in.v = tensors.at("v").view();
    in.g = tensors.at("g").view();
    in.beta = tensors.at("beta").view();
    in.lambda = tensors.at("lambda").view();
    in.h0 = tensors.at("h0").view();
    in.cu_seqlens = offsets;
    return in;
  }
  [[nodiscard]] Execution execution() const {
    return {.form = static_cast<Form>(options.form), .chunk = options.chunk};
  }
  [[nodiscard]] Device device() const { return {.threads = options.threads}; }

  // What the C++ interface gives: o and ht, and the gradients.
  [[nodiscard]] std::map<std::string, Tensor> expected() const {
    std::map<std::string, Tensor> out;
    out["o"] = Tensor(dtype, tensors.at("v").shape());
    out["ht"] = Tensor(DType::f32, states());
    for (const char* name : {"dq", "dk", "dv"}) out[name] = Tensor(dtype, shape_like(name));
    for (const char* name : {"dg", "dbeta", "dlambda", "dh0"}) out[name] = Tensor(DType::f32, shape_like(name));
    RecurrenceForward forward;
    forward.in = inputs();
    forward.o = out["o"].view();
    forward.ht = out["ht"].view();
    forward.run = execution();
    Workspace workspace(device());
    recurrence_forward(device(), forward, workspace);
    RecurrenceBackward backward;
    backward.in = inputs();
    backward.d_o = tensors.at("d_o").view();
    backward.d_ht = tensors.at("d_ht").view();
    backward.dq = out["dq"].view();
    backward.dk = out["dk"].view();
    backward.dv = out["dv"].view();
    backward.dg = out["dg"].view();
    backward.dbeta = out["dbeta"].view();
    backward.dlambda = out["dlambda"].view();
    backward.dh0 = out["dh0"].view();
    backward.run = execution();
    recurrence_backward(device(), backward, workspace);
    return out;
  }
};

// A problem as the C interface takes it, every tensor with the same kind of layout.
struct CProblem {
  std::map<std::string, DlTensor> tensors;
  qdelta_options options;
  qdelta_inputs in{};
  qdelta_outputs out{};
  qdelta_output_gradients d_out{};
  qdelta_input_gradients d_in{};

  explicit CProblem(const Problem& from, const Layout& layout = {}, DType offset_type = DType::i64)
      : options(from.options) {
    for (const auto& [name, values] : from.tensors) tensors.try_emplace(name, values, layout);
    tensors.try_emplace("o", from.dtype, from.tensors.at("v").shape(), layout);
    tensors.try_emplace("ht", DType::f32, from.states(), layout);
    for (const char* name : {"dq", "dk", "dv"}) tensors.try_emplace(name, from.dtype, from.shape_like(name), layout);
    for (const char* name : {"dg", "dbeta", "dlambda", "dh0"}) {
      tensors.try_emplace(name, DType::f32, from.shape_like(name), layout);
    }
    if (!from.offsets.empty()) {
      Tensor offsets(offset_type, {static_cast<std::int64_t>(from.offsets.size())});
      for (std::size_t i = 0; i < from.offsets.size(); ++i) {
        if (offset_type == DType::i32) offsets.as<std::int32_t>()[i] = static_cast<std::int32_t>(from.offsets[i]);
        if (offset_type == DType::i64) offsets.as<std::int64_t>()[i] = from.offsets[i];
      }
      tensors.try_emplace("cu_seqlens", offsets, layout);
      in.cu_seqlens = get("cu_seqlens");
    }
    in.q = get("q");
    in.k = get("k");
    in.v = get("v");
    in.g = get("g");
    in.beta = get("beta");
    in.lambda = get("lambda");
    in.h0 = get("h0");
    out.o = get("o");
    out.ht = get("ht");
    d_out.d_o = get("d_o");
    d_out.d_ht = get("d_ht");
    d_in = {get("dq"), get("dk"), get("dv"), get("dg"), get("dbeta"), get("dlambda"), get("dh0")};
  }

  [[nodiscard]] DLTensor* get(const std::string& name) { return tensors.at(name).get(); }
  qdelta_status forward() { return qdelta_forward(&options, &in, &out); }
  qdelta_status backward() { return qdelta_backward(&options, &in, &d_out, &d_in); }

  void expect_results(const std::map<std::string, Tensor>& expected) {
    for (const auto& [name, values] : expected) EXPECT_TRUE(same_bits(tensors.at(name).values(), values)) << name;
    for (auto& [name, tensor] : tensors) EXPECT_TRUE(tensor.surroundings_untouched()) << name;
  }
};

inline ::testing::AssertionResult ok(qdelta_status status) {
  if (status == QDELTA_OK) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << qdelta_status_text(status) << ": " << qdelta_last_error();
}

inline ::testing::AssertionResult refused(qdelta_status status, qdelta_status expected,
                                          const std::vector<std::string>& pieces) {
  const std::string message = qdelta_last_error();
  if (status != expected) {
    return ::testing::AssertionFailure() << "status is \"" << qdelta_status_text(status) << "\", message: " << message;
  }
  for (const std::string& piece : pieces) {
    if (message.find(piece) == std::string::npos) {
      return ::testing::AssertionFailure() << "no \"" << piece << "\" in the message: " << message;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace qdelta::testing
