// Every form against the golden cases.
#include <gtest/gtest.h>

#include <set>

#include "kernels/golden_case.h"
#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

class Golden : public ::testing::TestWithParam<RunOptions> {
 protected:
  static void SetUpTestSuite() { cases_ = new std::vector<GoldenCase>(read_golden_cases()); }
  static void TearDownTestSuite() { delete cases_; }
  static const std::vector<GoldenCase>& cases() { return *cases_; }

 private:
  static inline std::vector<GoldenCase>* cases_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Forms, Golden, ::testing::ValuesIn(all_forms()), form_test_name);

TEST_P(Golden, Float32) {
  std::set<Rule> rules;
  for (const GoldenCase& golden : cases()) {
    SCOPED_TRACE(golden.name);
    const bool is_oracle = GetParam().form == Form::oracle;
    expect_close(run_both(golden.problem, GetParam()), golden.expected,
                 is_oracle ? kOracleTolerance : golden.tolerance());
    rules.insert(golden.problem.spec.rule);
  }
  EXPECT_EQ(rules.size(), kRuleCount) << "a rule has no golden case";
}

// Inputs and outputs in bfloat16, arithmetic in float32: beyond what float32 is allowed there is one rounding, that of
// the result. States are float32 and have none.
TEST_P(Golden, BFloat16) {
  for (const GoldenCase& golden : cases()) {
    SCOPED_TRACE(golden.name);
    const RecurrenceCase rounded = in_bfloat16(golden.problem);
    RunOptions how = GetParam();
    how.bf16_products = false;
    expect_close(run_both(rounded, how), reference_of(rounded), golden.tolerance());
  }
}

// The large products may round their operands to bfloat16 too (root mean square 1.7e-3 each). The way to o and to the
// states leads through two products, of the state's update and of its reading: four roundings make 3.4e-3, and erasing
// takes differences, which may double that. The way to a gradient is half as long again. Without the norm values grow
// and cancel further.
TEST(GoldenProducts, InBFloat16) {
  for (const GoldenCase& golden : read_golden_cases()) {
    const RecurrenceCase rounded = in_bfloat16(golden.problem);
    const Reference expected = reference_of(rounded);
    for (const int chunk : kChunkLengths) {
      SCOPED_TRACE(golden.name + " chunk " + std::to_string(chunk));
      const Tolerance tolerance =
          golden.problem.spec.qk_l2norm ? Tolerance{0x1p-7, 1.5 * 0x1p-7} : Tolerance{0x1p-6, 0x1p-5};
      expect_close(run_both(rounded, {Form::chunk, chunk, 0, true}), expected, tolerance);
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
