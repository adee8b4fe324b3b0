// qdelta_options of other versions of the header, and memory that the caller gives.
#include "capi_testing.h"

namespace qdelta::testing {
namespace {

// As a program has it that was compiled with 0.1.
struct Options01 {
  uint32_t struct_size;
  qdelta_rule rule;
  qdelta_form form;
  float scale;
  int32_t qk_l2norm, chunk, threads, f32_products;
};

TEST(OptionsOfOtherVersions, SmallerOnesAreReadNoFurtherThanTheyGo) {
  const Problem problem(Rule::q_delta);
  CProblem c(problem);
  struct {
    Options01 options;
    unsigned char behind[64];
  } memory;
  std::memset(&memory, 0xee, sizeof memory);
  (qdelta_options_init)(reinterpret_cast<qdelta_options*>(&memory.options));  // what 0.1 called, not the macro
  for (const unsigned char byte : memory.behind) ASSERT_EQ(byte, 0xee);
  EXPECT_EQ(memory.options.struct_size, sizeof(Options01));
  memory.options.qk_l2norm = 1;
  ASSERT_TRUE(ok(qdelta_forward(reinterpret_cast<const qdelta_options*>(&memory.options), &c.in, &c.out)));
  ASSERT_TRUE(ok(c.backward()));
  c.expect_results(problem.expected());
}

TEST(OptionsOfOtherVersions, LargerOnesAreTakenWhereWhatIsNewIsZero) {
  const Problem problem(Rule::q_delta);
  CProblem c(problem);
  struct {
    qdelta_options options;
    std::uint64_t later = 1;
  } memory;
  auto* options = &memory.options;
  qdelta_options_init_sized(options, sizeof memory);
  EXPECT_EQ(memory.later, 0U);
  options->qk_l2norm = 1;
  ASSERT_TRUE(ok(qdelta_forward(options, &c.in, &c.out)));
  ASSERT_TRUE(ok(c.backward()));
  c.expect_results(problem.expected());
  memory.later = 1;
  EXPECT_TRUE(refused(qdelta_forward(options, &c.in, &c.out), QDELTA_UNSUPPORTED, {"options", "does not know"}));
}

// The same bits in memory of the caller, as much as the query says and not a byte less.
TEST(CallersWorkspace, AsMuchAsTheQuerySays) {
  for (const qdelta_form form : {QDELTA_CHUNK, QDELTA_RECURRENT, QDELTA_AUTO}) {
    Problem problem(Rule::q_delta);
    problem.options.form = form;
    CProblem c(problem);
    std::uint64_t forward = 0;
    std::uint64_t backward = 0;
    ASSERT_TRUE(ok(qdelta_forward_workspace(&c.options, &c.in, &c.out, &forward)));
    ASSERT_TRUE(ok(qdelta_backward_workspace(&c.options, &c.in, &c.d_out, &c.d_in, &backward)));
    AlignedBuffer memory(std::max(forward, backward) + kAlignment);
    std::memset(memory.data(), 0xff, memory.size());
    c.options.workspace = memory.data();
    c.options.workspace_size = forward;
    ASSERT_TRUE(ok(c.forward()));
    c.options.workspace_size = backward;
    ASSERT_TRUE(ok(c.backward()));
    c.expect_results(problem.expected());
    for (std::size_t i = std::max(forward, backward); i < memory.size(); ++i) {
      ASSERT_EQ(memory.data()[i], std::byte{0xff});
    }
    if (forward == 0) continue;
    c.options.workspace_size = forward - 1;
    EXPECT_TRUE(refused(c.forward(), QDELTA_INVALID_ARGUMENT, {"workspace", "needed"}));
  }
}

TEST(CallersWorkspace, NothingIsSavedBesideChunkStatesOnTheCpu) {
  CProblem c{Problem(Rule::q_delta)};
  std::uint64_t bytes = 1;
  ASSERT_TRUE(ok(qdelta_saved_size(&c.options, &c.in, &bytes)));
  EXPECT_EQ(bytes, 0U);
  EXPECT_TRUE(refused(qdelta_saved_size(&c.options, &c.in, nullptr), QDELTA_INVALID_ARGUMENT, {"bytes"}));
}

}  // namespace
}  // namespace qdelta::testing
