// What form runs: as resolve() says, to the bit.
#include <gtest/gtest.h>

#include "kernels/cpu/bf16_product.h"
#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

using Expected = std::pair<Form, int>;

class Resolve : public ::testing::Test {
 protected:
  [[nodiscard]] static CaseSpec spec(DType dtype) {
    CaseSpec made;
    made.tokens = 150;
    made.heads = 2;
    made.key_dim = 17;
    made.value_dim = 70;
    made.dtype = dtype;
    return made;
  }
  static Expected forward(const RecurrenceCase& problem, const Execution& run, bool saves_states = false) {
    Results<Tensor> out = make_results(problem.spec);
    RecurrenceForward args = forward_arguments(problem, out, {});
    args.run = run;
    if (saves_states) args.chunk_states = out.ht.view();
    const ResolvedForm what = resolve({}, args);
    return {what.form, what.tokens};
  }
  static Expected backward(const RecurrenceCase& problem, const Execution& run) {
    Results<Tensor> out = make_results(problem.spec);
    RecurrenceBackward args = backward_arguments(problem, out, {});
    args.run = run;
    const ResolvedForm what = resolve({}, args);
    return {what.form, what.tokens};
  }

  RecurrenceCase problem_ = random_case(spec(DType::f32), 71);
};

TEST_F(Resolve, AutomaticIsTheBlockedRecurrenceOfAForwardThatSavesNothing) {
  EXPECT_EQ(forward(problem_, {}), Expected(Form::recurrent, 4));
  EXPECT_EQ(forward(problem_, {}, true), Expected(Form::chunk, 64));
  EXPECT_EQ(forward(problem_, {.chunk = 32}), Expected(Form::chunk, 32));
  EXPECT_EQ(backward(problem_, {}), Expected(Form::chunk, 64));
  EXPECT_EQ(backward(problem_, {.chunk = 128}), Expected(Form::chunk, 128));
}

TEST_F(Resolve, AutomaticIsChunksWhereProductsAreOfBFloat16) {
  const RecurrenceCase narrow = random_case(spec(DType::bf16), 72);
  const Expected blocks(Form::recurrent, 4);
  EXPECT_EQ(forward(narrow, {}), cpu::bf16_product_available() ? Expected(Form::chunk, 64) : blocks);
  EXPECT_EQ(forward(narrow, {.bf16_products = false}), blocks);
}

TEST_F(Resolve, AFormThatIsAskedForRuns) {
  EXPECT_EQ(forward(problem_, {.form = Form::chunk}), Expected(Form::chunk, 64));
  EXPECT_EQ(forward(problem_, {.form = Form::chunk, .chunk = 16}), Expected(Form::chunk, 16));
  EXPECT_EQ(forward(problem_, {.form = Form::recurrent}), Expected(Form::recurrent, 4));
  EXPECT_EQ(forward(problem_, {.form = Form::oracle}), Expected(Form::oracle, 1));
  EXPECT_EQ(backward(problem_, {.form = Form::chunk}), Expected(Form::chunk, 64));
  EXPECT_EQ(backward(problem_, {.form = Form::recurrent}), Expected(Form::recurrent, 1));
  EXPECT_EQ(backward(problem_, {.form = Form::oracle}), Expected(Form::oracle, 1));
}

TEST_F(Resolve, IsWhatRuns) {
  const Results<Tensor> automatic = run_both(problem_, {Form::automatic, 0, 2, true});
  const Results<Tensor> blocks = run_forward(problem_, {Form::recurrent, 0, 2, true});
  const Results<Tensor> chunks = run_both(problem_, {Form::chunk, 64, 2, true});
  EXPECT_TRUE(same_bits(automatic.o, blocks.o));
  EXPECT_FALSE(same_bits(automatic.o, chunks.o));
  EXPECT_TRUE(same_bits(automatic.dq, chunks.dq));
  expect_same_bits(run_both(problem_, {Form::chunk, 0, 2, true}), chunks);
}

}  // namespace
}  // namespace qdelta::testing
