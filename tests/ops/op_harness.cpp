#include "ops/op_harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <set>
#include <tuple>

#include "ops/op_memory.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

// Aligned and dense; aligned with gaps; neither.
constexpr RowPlacement kPlacements[] = {{0, 0}, {8, 8}, {1, 3}};

// The GPU that there is, or why there is none.
struct Gpu {
  std::shared_ptr<const cuda::Context> context;
  std::string why_none;
};
const Gpu& gpu() {
  static const Gpu found = [] {
    const Gpus gpus = find_gpus();
    return gpus.names.empty() ? Gpu{nullptr, gpus.why_none} : Gpu{open_gpu(0), ""};
  }();
  return found;
}

// The largest error of each result over all shapes, printed at the end.
class ErrorTable final : public ::testing::Environment {
 public:
  using Key = std::tuple<std::string, std::string, std::string, std::string>;  // op, result, type, device
  struct Entry {
    double error = -1, bound = 0;
    std::string shape;
  };
  void note(const Key& key, const Entry& entry) {
    Entry& worst = table_[key];
    if (!(entry.error / std::max(entry.bound, 1e-300) < worst.error / std::max(worst.bound, 1e-300))) worst = entry;
  }
  void SetUp() override {
    if (!gpu_here()) std::printf("GPU cases are skipped: %s\n", gpu().why_none.c_str());
  }
  void TearDown() override {
    if (table_.empty()) return;
    std::printf("%-14s %-28s %-5s %-10s %-16s %9s %9s\n", "op", "shape of the largest error", "type", "device",
                "result", "error", "bound");
    for (const auto& [key, worst] : table_) {
      const auto& [op, result, type, device] = key;
      std::printf("%-14s %-28s %-5s %-10s %-16s %9.2e %9.2e\n", op.c_str(), worst.shape.c_str(), type.c_str(),
                  device.c_str(), result.c_str(), worst.error, worst.bound);
    }
  }

 private:
  std::map<Key, Entry> table_;
};
ErrorTable* const error_table = [] {
  auto* table = new ErrorTable;  // gtest owns it
  ::testing::AddGlobalTestEnvironment(table);
  return table;
}();

// FNV-1a of what a case is called, and of which of its operands the numbers are for.
Random random_for(const OpCase& problem, const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : problem.op + "/" + problem.shape + "/" + name)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return Random(hash);
}

double square(double x) { return x * x; }

struct Comparison {
  double error, bound;
};
Comparison compare(const Bound& bound, DType dtype, const std::vector<double>& got,
                   const std::vector<double>& expected) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (got.size() != expected.size()) return {kWrong, 0};
  if (bound.absolute >= 0) {
    double error = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double wanted = rounded_to(dtype, expected[i]);
      if (got[i] == wanted) continue;
      const double difference = std::abs(got[i] - wanted);
      error = std::isnan(difference) ? kWrong : std::max(error, difference);
    }
    return {error, bound.absolute};
  }
  if (bound.terms > 0) {
    double error = 0;
    double size = static_cast<double>(bound.terms) * static_cast<double>(expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += square(got[i] - expected[i]);
      size += square(expected[i]);
    }
    return {std::isfinite(error) ? std::sqrt(error / size) : kWrong, 2e-6};
  }
  const double usual = dtype == kBF16 ? 4e-3 : 5e-6;
  return {relative_error(got, expected), bound.relative > 0 ? bound.relative : usual};
}

void expect_close(const OpCase& problem, const std::string& device, const std::string& type, bool on_gpu,
                  const OpValues& got, const OpValues& expected) {
  for (const Operand& operand : problem.operands) {
    if (operand.use == Use::in || (operand.gpu_only && !on_gpu)) continue;
    const DType dtype = !on_gpu && operand.dtype == kBF16 ? kF32 : operand.dtype;
    // What only a GPU has the oracle knows.
    if (!expected.contains(operand.name)) continue;
    const Comparison found = compare(operand.bound, dtype, got.at(operand.name), expected.at(operand.name));
    if (problem.listed)
      error_table->note({problem.op, operand.name, type, device}, {found.error, found.bound, problem.shape});
    EXPECT_LE(found.error, found.bound) << operand.name << " " << operand.shape.text();
  }
}

OpValues initial_values(const OpCase& problem) {
  OpValues values;
  for (const Operand& operand : problem.operands) {
    values[operand.name] = operand.initial;
    if (operand.use == Use::out)
      values[operand.name].assign(static_cast<std::size_t>(operand.shape.elements()),
                                  std::numeric_limits<double>::quiet_NaN());
  }
  return values;
}

OpValues oracle_values(const OpCase& problem) {
  OpValues values = initial_values(problem);
  if (problem.oracle_forward) problem.oracle_forward(values);
  if (problem.oracle_backward) problem.oracle_backward(values);
  return values;
}

// Along a random direction in one input, (L(x + h d) - L(x - h d)) / 2h = gradient . d for L = sum of (dy . y).
void expect_gradients_of_oracle(const OpCase& problem, const OpValues& after) {
  const OpValues before = initial_values(problem);
  std::set<std::string> outputs;
  for (const Operand& operand : problem.operands) {
    if (operand.use != Use::in && before.contains("d" + operand.name)) outputs.insert(operand.name);
  }
  for (const Operand& operand : problem.operands) {
    const auto gradient = std::find_if(problem.operands.begin(), problem.operands.end(),
                                       [&](const Operand& other) { return other.name == "d" + operand.name; });
    if (operand.use != Use::in || gradient == problem.operands.end() || gradient->use == Use::in) continue;
    std::vector<double> direction(operand.initial.size());
    Random random = random_for(problem, "direction of " + operand.name);
    for (double& value : direction) value = random.normal();
    const auto loss_at = [&](double step) {
      OpValues moved = before;
      for (std::size_t i = 0; i < direction.size(); ++i) moved[operand.name][i] += step * direction[i];
      problem.oracle_forward(moved);
      double loss = 0;
      for (const std::string& name : outputs) {
        const std::vector<double>& weights = before.at("d" + name);
        for (std::size_t i = 0; i < weights.size(); ++i) loss += moved.at(name)[i] * weights[i];
      }
      return loss;
    };
    // Richardson's extrapolation: the error is of fourth order, so that h can stay large against rounding.
    const double h = 1e-3;
    const double coarse = (loss_at(h) - loss_at(-h)) / (2 * h);
    const double fine = (loss_at(h / 2) - loss_at(-h / 2)) / h;
    double actual = 0;
    double size = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      const double added = after.at(gradient->name)[i] - (gradient->use == Use::out ? 0 : gradient->initial[i]);
      actual += added * direction[i];
      size += square(added);
    }
    EXPECT_NEAR(actual, (4 * fine - coarse) / 3, 1e-6 * (std::sqrt(size) + 1e-3)) << "the oracle's " << gradient->name;
  }
}

OpResults run_case(const OpCase& problem, const Device& device, const RowPlacement& place) {
  PlacedOperands tensors(device, problem, place);
  if (problem.forward) run_call(device, problem.forward, tensors);
  if (problem.backward) run_call(device, problem.backward, tensors);
  return tensors.results();
}

}  // namespace

Operand& OpCase::add(const std::string& name, Use use, DType dtype, const Shape& extents, double scale,
                     const Bound& bound) {
  Operand made{.name = name, .use = use, .dtype = dtype, .shape = extents, .bound = bound};
  made.placed = extents.rank == 2;
  if (use != Use::out && scale != 0) {
    made.initial.resize(static_cast<std::size_t>(extents.elements()));
    Random random = random_for(*this, name);
    for (double& value : made.initial) value = rounded_to(dtype, scale * double{random.normal()});
  }
  operands.push_back(std::move(made));
  return operands.back();
}

void check_op(const OpCase& problem) {
  bool bf16 = false;
  for (const Operand& operand : problem.operands) bf16 = bf16 || (operand.dtype == kBF16 && !operand.gpu_only);
  const std::string type = text_of(bf16 ? kBF16 : kF32);
  SCOPED_TRACE(fmt::format("{} {} {}", problem.op, problem.shape, type));
  const OpValues expected = oracle_values(problem);
  if (problem.differences && problem.oracle_forward && problem.oracle_backward && !bf16)
    expect_gradients_of_oracle(problem, expected);
  for (const RowPlacement& place : kPlacements) {
    SCOPED_TRACE(fmt::format("offset {} padding {}", place.offset, place.padding));
    const OpResults cpu = run_case(problem, {.threads = 2}, place);
    {
      SCOPED_TRACE("CPU");
      expect_close(problem, "CPU", type, false, cpu.values, expected);
      if (problem.also) problem.also(cpu.values);
      for (const int threads : {1, 2, 3, 5}) {
        if (place.padding != 0 && threads != 1) continue;
        const OpResults again = run_case(problem, {.threads = threads}, place);
        EXPECT_TRUE(again.bits == cpu.bits) << "other bits with " << threads << " threads than with 2";
      }
    }
    if (!gpu_here()) continue;
    SCOPED_TRACE("GPU");
    const Device device{.gpu = gpu().context.get()};
    const OpResults got = run_case(problem, device, place);
    expect_close(problem, "GPU", type, true, got.values, expected);
    expect_close(problem, "GPU to CPU", type, true, got.values, cpu.values);
    if (problem.also) problem.also(got.values);
    EXPECT_TRUE(run_case(problem, device, place).bits == got.bits) << "other bits when it is repeated";
  }
}

bool gpu_here() { return gpu().context != nullptr; }

std::vector<DType> activation_types() {
  if (!gpu_here()) return {kF32};
  return {kF32, kBF16};
}

std::string text_of(DType dtype) { return dtype == kBF16 ? "bf16" : "f32"; }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace qdelta::testing
