// What the operator must do at least, counted by hand.
#include "bench/op_work.h"

#include <gtest/gtest.h>

namespace qdelta::testing {
namespace {

using bench::OpShape;
using bench::OpWork;
namespace work_of = bench::work_of;

TEST(OpWork, OfAStep) {
  const OpShape shape{Rule::q_delta, /*batch=*/3, /*tokens=*/1, /*heads=*/2, /*K=*/8, /*V=*/16, /*element_bytes=*/4};
  const OpWork work = work_of::step(shape);
  // Of each head: the state of 8 x 16 read and written, q and k of 8, v and o of 16, three gates.
  EXPECT_EQ(work.bytes, 3 * 2 * 4 * (2 * 8 * 16 + 2 * 8 + 2 * 16 + 3));
  EXPECT_EQ(work.flop, 3 * 2 * 7 * 8 * 16);
  // Linear attention predicts nothing and has only the decay.
  const OpShape linear{Rule::linear, 1, 1, 1, 8, 16, 4};
  EXPECT_EQ(work_of::step(linear).bytes, 4 * (2 * 8 * 16 + 2 * 8 + 2 * 16 + 1));
  EXPECT_EQ(work_of::step(linear).flop, 5 * 8 * 16);
}

TEST(OpWork, OfSequencesInBfloat16) {
  const OpShape shape{Rule::gated_delta, /*batch=*/2, /*tokens=*/10,      /*heads=*/3,
                      /*K=*/4,           /*V=*/8,     /*element_bytes=*/2};
  const OpWork forward = work_of::forward(shape, 64);
  EXPECT_EQ(forward.bytes, 2 * 10 * 3 * (2 * (4 + 4 + 8 + 8) + 4 * 2));  // g and beta are float32
  EXPECT_EQ(forward.flop, 2 * 10 * 3 * (6 * 4 * 8 + 4 * 64 * (4 + 8)));
  const OpWork backward = work_of::backward(shape, 64);
  EXPECT_EQ(backward.bytes, 2 * 10 * 3 * (2 * (4 * 4 + 3 * 8) + 4 * 4));
  EXPECT_EQ((forward + backward).bytes, forward.bytes + backward.bytes);
  EXPECT_EQ((forward + backward).flop, forward.flop + backward.flop);
}

}  // namespace
}  // namespace qdelta::testing
