// Every instruction set the kernels are compiled for and this machine has, not only the best one.
#include <gtest/gtest.h>

// As the engine is compiled: the sets between the baseline, AVX2 and AVX-512 are left out.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/targets.h>

#include <limits>

#include "kernels/golden_case.h"
#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

// While it lives, kernels run on this set. Better sets have lower bits; worse ones stay, for there must be one to call.
class OnlyUpTo {
 public:
  explicit OnlyUpTo(std::int64_t target) { hwy::GetChosenTarget().Update(hwy::SupportedTargets() & ~(target - 1)); }
  ~OnlyUpTo() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
  OnlyUpTo(const OnlyUpTo&) = delete;
  OnlyUpTo& operator=(const OnlyUpTo&) = delete;
};

template <class Body>
void on_each_set(const Body& body) {
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const std::int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnlyUpTo only(target);
    body();
  }
}

const std::vector<RunOptions>& some_forms() {
  static const std::vector<RunOptions> forms{
      {Form::chunk, 16, 2, false}, {Form::chunk, 64, 1, false}, {Form::recurrent, 0, 1, false}};
  return forms;
}

TEST(InstructionSets, MeetTheGoldenCases) {
  const std::vector<GoldenCase> cases = read_golden_cases();
  on_each_set([&] {
    for (const GoldenCase& golden : cases) {
      if (quick() && golden.problem.spec.tokens > 100) continue;
      for (const RunOptions& how : some_forms()) {
        SCOPED_TRACE(golden.name + " " + describe(how));
        expect_close(run_both(golden.problem, how), golden.expected, golden.tolerance());
      }
    }
  });
}

TEST(InstructionSets, AgreeOnOddShapes) {
  for (const Rule rule : all_rules()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CaseSpec spec;
      spec.rule = rule;
      spec.dtype = dtype;
      spec.tokens = 51;
      spec.cu_seqlens = {0, 1, 1, 19, 51};
      spec.heads = 1;
      spec.shared = 2;
      spec.key_dim = 19;
      spec.value_dim = 69;
      const RecurrenceCase problem = random_case(spec, 95);
      const Reference expected = reference_of(problem);
      on_each_set([&] {
        for (const RunOptions& how : some_forms()) {
          SCOPED_TRACE(describe(spec) + " " + describe(how));
          expect_close(run_both(problem, how), expected, {});
        }
      });
    }
  }
}

TEST(InstructionSets, AgreeOnSteps) {
  CaseSpec spec;
  spec.batch = 2;
  spec.tokens = 6;
  spec.key_dim = 19;
  spec.value_dim = 69;
  const RecurrenceCase problem = random_case(spec, 96);
  const Reference expected = reference_of(problem);
  on_each_set([&] {
    Results<Tensor> out;
    out.o = nan_tensor(DType::f32, spec.values());
    out.ht = converted(problem.h0.view(), DType::f32);
    for (std::int64_t t = 0; t < spec.tokens; ++t) run(step_arguments(problem, t, out.o.view(), out.ht.view()));
    expect_close(out, expected, {});
  });
}

// One token that writes v and reads it back unchanged, so that o is v rounded to the type of o: vectors of it must
// round as BFloat16 does.
TEST(InstructionSets, RoundToBFloat16AsTheTypeDoes) {
  CaseSpec spec;
  spec.rule = Rule::linear;
  spec.tokens = 1;
  spec.key_dim = 1;
  spec.value_dim = 4096;
  spec.scale = 1;
  spec.qk_l2norm = false;
  spec.h0 = false;
  RecurrenceCase problem = random_case(spec, 97);
  problem.q.as<float>()[0] = 1;
  problem.k.as<float>()[0] = 1;
  problem.g.as<float>()[0] = 0;
  Random random(98);
  for (float& value : problem.v.as<float>()) {
    auto bits = static_cast<std::uint32_t>(random.bits());
    if (chance(random, 0.3)) bits = (bits & 0xffff0000U) | 0x8000U;       // ties
    if (chance(random, 0.1)) bits |= 0x7f800000U;                         // NaN
    if (chance(random, 0.05)) bits = (bits & 0x80000000U) | 0x7f7fffffU;  // rounds to infinity
    value = std::bit_cast<float>(bits);
    if (std::abs(value) < std::numeric_limits<float>::min()) value = 0;
  }
  on_each_set([&] {
    for (const RunOptions& how : some_forms()) {
      SCOPED_TRACE(describe(how));
      Results<Tensor> wide;
      wide.o = nan_tensor(DType::f32, spec.values());
      run(forward_arguments(problem, wide, how), how.device());
      Results<Tensor> narrow;
      narrow.o = nan_tensor(DType::bf16, spec.values());
      run(forward_arguments(problem, narrow, how), how.device());
      Tensor expected(DType::bf16, spec.values());
      for (std::size_t i = 0; i < expected.as<BFloat16>().size(); ++i) {
        expected.as<BFloat16>()[i] = BFloat16(wide.o.as<float>()[i]);
      }
      EXPECT_TRUE(same_bits(narrow.o, expected));
    }
  });
}

#if HWY_ARCH_X86
// Without this the tests above would pass if the choice were ignored: AVX2 has a fused multiply-add and the baseline
// has none, so the last bits differ.
TEST(InstructionSets, AreReallyChosen) {
  if ((hwy::SupportedTargets() & HWY_AVX2) == 0 || HWY_STATIC_TARGET <= HWY_AVX2) GTEST_SKIP();
  const RecurrenceCase problem = random_case({}, 99);
  Tensor with;
  Tensor without;
  {
    const OnlyUpTo only(HWY_AVX2);
    with = run_forward(problem, some_forms()[0]).o;
  }
  {
    const OnlyUpTo only(HWY_STATIC_TARGET);
    without = run_forward(problem, some_forms()[0]).o;
  }
  EXPECT_FALSE(same_bits(with, without));
}
#endif

}  // namespace
}  // namespace qdelta::testing
