// A random selective scan: inputs that are exact in float32 (or bfloat16), what the oracle makes of them, and running
// the op on the CPU with every output full of NaN beforehand.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/random.h"
#include "core/tensor.h"
#include "kernels/selective_scan.h"
#include "rule/selective_scan_oracle.h"
#include "testing.h"

namespace qdelta::testing {

struct ScanSpec {
  std::vector<std::int64_t> lengths{40};
  std::int64_t channels = 20, states = 16;
  bool gate = true, initial = true;
  double dt_low = -5, dt_high = 1;  // of dt + dt_bias, roughly
  DType dtype = DType::f32;         // that the matrices are exact in
};

// Inputs, or gradients of them.
using ScanValues = ScanOracleInputs<double>;

struct ScanCase {
  ScanSpec spec;
  ScanOracleShape shape;
  ScanValues in;
  std::vector<double> dy, d_ht;

  [[nodiscard]] std::int64_t tokens() const { return shape.tokens(); }
  [[nodiscard]] std::int64_t sequences() const { return shape.sequences(); }
};

inline ScanCase random_scan(const ScanSpec& spec, std::uint64_t seed) {
  Random random(seed);
  ScanCase made;
  made.spec = spec;
  made.shape.offsets = {0};
  for (const std::int64_t length : spec.lengths) made.shape.offsets.push_back(made.shape.offsets.back() + length);
  made.shape.channels = spec.channels;
  made.shape.states = spec.states;
  const auto fill = [&](std::int64_t count, DType dtype, const auto& make) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) {
      const auto narrow = static_cast<float>(make());
      value = dtype == DType::bf16 ? double{static_cast<float>(BFloat16(narrow))} : double{narrow};
    }
    return values;
  };
  const auto normal = [&] { return double{random.normal()}; };
  const std::int64_t T = made.tokens();
  const std::int64_t D = spec.channels;
  const std::int64_t N = spec.states;
  made.in.x = fill(T * D, spec.dtype, normal);
  made.in.dt = fill(T * D, spec.dtype, [&] { return uniform(random, spec.dt_low, spec.dt_high); });
  made.in.B = fill(T * N, spec.dtype, normal);
  made.in.C = fill(T * N, spec.dtype, normal);
  if (spec.gate) made.in.z = fill(T * D, spec.dtype, normal);
  made.in.A_log = fill(D * N, DType::f32, [&] { return uniform(random, -1.0, 2.8); });
  made.in.skip = fill(D, DType::f32, normal);
  made.in.dt_bias = fill(D, DType::f32, [&] { return 0.3 * normal(); });
  if (spec.initial) made.in.h0 = fill(made.sequences() * N * D, DType::f32, normal);
  made.dy = fill(T * D, spec.dtype, normal);
  if (spec.initial) made.d_ht = fill(made.sequences() * N * D, DType::f32, normal);
  return made;
}

inline Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype = DType::f32) {
  Tensor tensor(dtype, shape);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::bf16) {
      tensor.as<BFloat16>()[i] = BFloat16(static_cast<float>(values[i]));
    } else {
      tensor.as<float>()[i] = static_cast<float>(values[i]);
    }
  }
  return tensor;
}

inline Tensor nan_tensor(const Shape& shape, DType dtype = DType::f32) {
  Tensor tensor(dtype, shape);
  std::fill_n(tensor.data(), tensor.bytes(), std::byte{0xff});
  return tensor;
}

// The inputs as tensors of the case's type.
struct ScanTensors {
  Tensor x, dt, B, C, z, A_log, skip, dt_bias, h0, dy, d_ht;

  explicit ScanTensors(const ScanCase& c, DType dtype = DType::f32) {
    const std::int64_t T = c.tokens();
    const std::int64_t D = c.spec.channels;
    const std::int64_t N = c.spec.states;
    x = tensor_of(c.in.x, {T, D}, dtype);
    dt = tensor_of(c.in.dt, {T, D}, dtype);
    B = tensor_of(c.in.B, {T, N}, dtype);
    C = tensor_of(c.in.C, {T, N}, dtype);
    if (c.spec.gate) z = tensor_of(c.in.z, {T, D}, dtype);
    A_log = tensor_of(c.in.A_log, {D, N});
    skip = tensor_of(c.in.skip, {D});
    dt_bias = tensor_of(c.in.dt_bias, {D});
    if (c.spec.initial) h0 = tensor_of(c.in.h0, {c.sequences(), N, D});
    dy = tensor_of(c.dy, {T, D}, dtype);
    if (c.spec.initial) d_ht = tensor_of(c.d_ht, {c.sequences(), N, D});
  }
  [[nodiscard]] SelectiveScanInputs inputs(std::span<const std::int64_t> offsets) const {
    return {x.view(),     dt.view(),   B.view(),       C.view(),  z.view(),
            A_log.view(), skip.view(), dt_bias.view(), h0.view(), offsets};
  }
};

// Every output of the forward and the backward.
struct ScanOutputs {
  Tensor y, ht, chunk_states, dx, ddt, dB, dC, dz, dA_log, dskip, ddt_bias, dh0;

  ScanOutputs() = default;
  explicit ScanOutputs(const ScanCase& c, DType dtype = DType::f32) {
    const std::int64_t T = c.tokens();
    const std::int64_t D = c.spec.channels;
    const std::int64_t N = c.spec.states;
    for (Tensor* tensor : {&y, &dx, &ddt}) *tensor = nan_tensor({T, D}, dtype);
    if (c.spec.gate) dz = nan_tensor({T, D}, dtype);
    for (Tensor* tensor : {&dB, &dC}) *tensor = nan_tensor({T, N}, dtype);
    ht = nan_tensor({c.sequences(), N, D});
    dh0 = nan_tensor({c.sequences(), N, D});
    chunk_states = nan_tensor({scan_chunks(T), N, D});
    dA_log = Tensor(DType::f32, {D, N});  // added to
    dskip = Tensor(DType::f32, {D});
    ddt_bias = Tensor(DType::f32, {D});
  }
  [[nodiscard]] std::vector<std::pair<const char*, const Tensor*>> all() const {
    return {{"y", &y},
            {"ht", &ht},
            {"dx", &dx},
            {"ddt", &ddt},
            {"dB", &dB},
            {"dC", &dC},
            {"dz", &dz},
            {"dh0", &dh0},
            {"dA_log", &dA_log},
            {"dskip", &dskip},
            {"ddt_bias", &ddt_bias}};
  }
};

inline ScanOutputs run_scan(const ScanCase& c, const Device& device) {
  const ScanTensors in(c);
  ScanOutputs out(c);
  SelectiveScanForward forward{in.inputs(c.shape.offsets), out.y.view(), out.ht.view(), out.chunk_states.view()};
  AlignedBuffer space(selective_scan_workspace(device, forward.in, false));
  Workspace forward_space({space.data(), space.size()});
  selective_scan_forward(device, forward, forward_space);
  SelectiveScanBackward backward{in.inputs(c.shape.offsets),
                                 in.dy.view(),
                                 in.d_ht.view(),
                                 out.chunk_states.view(),
                                 out.dx.view(),
                                 out.ddt.view(),
                                 out.dB.view(),
                                 out.dC.view(),
                                 out.dz.view(),
                                 out.dA_log.view(),
                                 out.dskip.view(),
                                 out.ddt_bias.view(),
                                 out.dh0.view()};
  space = AlignedBuffer(selective_scan_workspace(device, backward.in, true));
  std::fill_n(space.data(), space.size(), std::byte{0xff});
  Workspace backward_space({space.data(), space.size()});
  selective_scan_backward(device, backward, backward_space);
  return out;
}

// What the oracle says, in the order of ScanOutputs::all.
inline std::vector<std::vector<double>> expected_scan(const ScanCase& c) {
  const ScanOracleOutputs<double> out = scan_oracle_forward(c.shape, c.in);
  ScanValues d = scan_oracle_backward(c.shape, c.in, c.dy, c.d_ht);
  return {out.y, out.ht, d.x, d.dt, d.B, d.C, d.z, d.h0, d.A_log, d.skip, d.dt_bias};
}

// A tensor of few numbers may be what is left of larger ones that cancelled: it may be off by more of its own size.
inline void expect_scan(const ScanOutputs& got, const ScanCase& c, double tolerance) {
  const std::vector<std::vector<double>> expected = expected_scan(c);
  const auto all = got.all();
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_LT(relative_error(all[i].second->view(), expected[i]), tolerance * (expected[i].size() < 20 ? 20 : 1))
        << all[i].first;
  }
}

inline std::string describe(const ScanSpec& spec) {
  return fmt::format("D {}, N {}{}{}, lengths {}", spec.channels, spec.states, spec.gate ? ", gate" : "",
                     spec.initial ? ", states" : "", fmt::join(spec.lengths, " "));
}

inline ScanSpec random_scan_spec(Random& random) {
  ScanSpec spec;
  spec.lengths.clear();
  for (std::int64_t n = random.integer(1, 4); n > 0; --n) {
    spec.lengths.push_back(
        pick<std::int64_t>(random, {0, 1, 2, random.integer(3, 40), 32, 64, random.integer(60, 140)}));
  }
  spec.channels = pick<std::int64_t>(random, {1, 3, 16, 31, 32, 33, 100, 128, 257});
  spec.states = pick<std::int64_t>(random, {1, 3, 4, 8, 15, 16, 16, 16, 17, 33, 64});
  spec.gate = chance(random, 0.7);
  spec.initial = chance(random, 0.5);
  return spec;
}

}  // namespace qdelta::testing
