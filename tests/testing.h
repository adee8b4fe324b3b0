// What all suites share: random choices, errors in norm, bits compared, and expecting an Error.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "core/tensor.h"
#include "rule/rule.h"

namespace qdelta::testing {

// Heavy loops shrink where QDELTA_QUICK is set, which is meant for sanitizers.
inline bool quick() { return std::getenv("QDELTA_QUICK") != nullptr; }

// The recorded cases: where they were when the tests were compiled, or where QDELTA_GOLDEN_DIR says, for tests that run
// on another machine (make dist CUDA=1).
#ifdef QDELTA_GOLDEN_DIR
inline std::string golden_folder() {
  const char* elsewhere = std::getenv("QDELTA_GOLDEN_DIR");
  return elsewhere != nullptr ? elsewhere : QDELTA_GOLDEN_DIR;
}
#endif

// Under a sanitizer an allocation that cannot be had ends the program.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

inline double uniform(Random& random, double low, double high) { return low + (high - low) * random.uniform(); }
inline bool chance(Random& random, double probability) { return random.uniform() < probability; }
template <class T>
T pick(Random& random, const std::vector<T>& values) {
  return values[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(values.size()) - 1))];
}

inline std::vector<Rule> all_rules() {
  std::vector<Rule> rules;
  for (std::size_t i = 0; i < kRuleCount; ++i) rules.push_back(static_cast<Rule>(i));
  return rules;
}
// For the names of parameterised tests.
inline std::string rule_test_name(const ::testing::TestParamInfo<Rule>& info) {
  return std::string(traits_of(info.param).name);
}

inline std::vector<double> to_doubles(const ConstTensorView& view) {
  std::vector<double> out;
  if (!view) return out;
  const std::int64_t count = view.shape.elements();
  out.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) out.push_back(element_as_double(view, i));
  return out;
}

// |got - expected| / |expected| in the Euclidean norm. Where everything expected is zero only exact zeros will do; a
// NaN or another length is infinitely wrong.
inline double relative_error(std::span<const double> got, std::span<const double> expected) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (got.size() != expected.size()) return kWrong;
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  if (error == 0) return 0;
  if (size == 0 || !std::isfinite(error)) return kWrong;
  return std::sqrt(error / size);
}
inline double relative_error(const ConstTensorView& got, std::span<const double> expected) {
  return relative_error(to_doubles(got), expected);
}

inline bool all_finite(std::span<const double> values) {
  for (const double value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) {
    return ::testing::AssertionFailure() << "shapes or types differ: " << a.shape().text() << " and "
                                         << b.shape().text();
  }
  if ((a.data() == nullptr) != (b.data() == nullptr)) return ::testing::AssertionFailure() << "one is missing";
  if (a.data() == nullptr || a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0)
    return ::testing::AssertionSuccess();
  const std::size_t size = size_of(a.dtype());
  std::size_t at = 0;
  while (std::memcmp(a.data() + at * size, b.data() + at * size, size) == 0) ++at;
  return ::testing::AssertionFailure() << "element " << at << " of " << a.shape().text()
                                       << " differs: " << element_as_double(a.view(), static_cast<std::int64_t>(at))
                                       << " and " << element_as_double(b.view(), static_cast<std::int64_t>(at));
}

// The message of the Error that an action throws; "" where it throws none.
template <class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Runs `action`, which must throw an Error of this status with each of these pieces in its message.
template <class Action>
void expect_error(Status status, const std::vector<std::string>& pieces, Action&& action) {
  try {
    static_cast<void>(action());
    ADD_FAILURE() << "no error; expected one that says: " << (pieces.empty() ? "" : pieces.front());
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    for (const std::string& piece : pieces) {
      EXPECT_TRUE(std::string_view(error.what()).find(piece) != std::string_view::npos)
          << "message: " << error.what() << "\nshould contain: " << piece;
    }
  }
}

}  // namespace qdelta::testing
