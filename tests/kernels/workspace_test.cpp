// How much scratch space is asked for, and what may be handed in.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

// Arguments for any number of tokens over the memory of one: only the shapes are looked at.
RecurrenceForward forward_of(const RecurrenceCase& one_token, Results<Tensor>& out, std::int64_t tokens,
                             const RunOptions& how) {
  RecurrenceForward args = forward_arguments(one_token, out, how);
  for (ConstTensorView* view : {&args.in.q, &args.in.k, &args.in.v, &args.in.g, &args.in.beta, &args.in.lambda}) {
    view->shape.extent[1] = tokens;
  }
  args.o.shape.extent[1] = tokens;
  return args;
}

TEST(Workspace, OfTheForwardDoesNotGrowWithTheSequence) {
  CaseSpec spec;
  spec.tokens = 1;
  spec.heads = 2;
  spec.key_dim = 32;
  spec.value_dim = 100;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    spec.dtype = dtype;
    const RecurrenceCase problem = random_case(spec, 1);
    Results<Tensor> out = make_results(spec);
    for (RunOptions how : all_forms()) {
      for (const int threads : {1, 4}) {
        how.threads = threads;
        EXPECT_EQ(recurrence_workspace(how.device(), forward_of(problem, out, 64, how)),
                  recurrence_workspace(how.device(), forward_of(problem, out, 100000, how)))
            << describe(how);
      }
    }
  }
}

TEST(Workspace, OfTheBackwardIsSmallerWithSavedStates) {
  const RecurrenceCase problem = random_case({}, 2);
  Results<Tensor> out = make_results({});
  RecurrenceBackward args = backward_arguments(problem, out, {Form::chunk, 16, 1, true});
  const std::size_t without = recurrence_workspace(kOneThread, args);
  const Tensor states(DType::f32, {3, 1, 16, 16});
  args.chunk_states = states.view();
  EXPECT_LE(recurrence_workspace(kOneThread, args) + states.bytes(), without);
}

// More than is needed does no harm, and no bit depends on it.
TEST(Workspace, MayBeLargerThanNeeded) {
  const RecurrenceCase problem = random_case({}, 3);
  const RunOptions how{Form::chunk, 16, 2, true};
  const Results<Tensor> expected = run_both(problem, how);
  Results<Tensor> out = make_results({});
  AlignedBuffer plenty(std::size_t{1} << 24);
  std::memset(plenty.data(), 0xff, plenty.size());
  Workspace workspace({plenty.data(), plenty.size()});
  recurrence_forward(how.device(), forward_arguments(problem, out, how), workspace);
  recurrence_backward(how.device(), backward_arguments(problem, out, how), workspace);
  expect_same_bits(out, expected);
}

// One that owns its memory grows to what an op needs, and serves smaller ones as well.
TEST(Workspace, GrowsWhereItOwnsItsMemory) {
  Workspace workspace{Device{}};
  EXPECT_TRUE(workspace.get(0).empty());
  const std::span<std::byte> small = workspace.get(100);
  EXPECT_EQ(small.size(), 100U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small.data()) % kAlignment, 0U);
  const std::span<std::byte> large = workspace.get(1 << 16);
  std::memset(large.data(), 0xff, large.size());
  EXPECT_EQ(workspace.get(100).data(), large.data());
}

TEST(Workspace, OfTheCallerDoesNotGrow) {
  AlignedBuffer memory(128);
  Workspace workspace({memory.data(), memory.size()});
  EXPECT_EQ(workspace.get(128).data(), memory.data());
  expect_error(Status::invalid_argument, {"workspace has 128 bytes, 129 are needed"},
               [&] { return workspace.get(129); });
  Workspace none{std::span<std::byte>()};
  expect_error(Status::invalid_argument, {"workspace has 0 bytes"}, [&] { return none.get(1); });
}

// Memory that starts anywhere, such as that of a std::vector<std::byte>, is used or refused, but is no crash.
TEST(WorkspaceDeathTest, ThatStartsAnywhereIsNoCrash) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const RecurrenceCase problem = random_case({}, 4);
        Results<Tensor> out = make_results({});
        const RecurrenceForward args = forward_arguments(problem, out, {Form::chunk, 16, 1, true});
        const std::size_t bytes = recurrence_workspace(kOneThread, args);
        AlignedBuffer memory(bytes + kAlignment);
        try {
          Workspace workspace({memory.data() + 4, bytes});
          recurrence_forward(kOneThread, args, workspace);
        } catch (const Error& error) {
          std::_Exit(error.status() == Status::invalid_argument ? 0 : 1);
        }
        std::_Exit(relative_error(out.o.view(), reference_of(problem).o) < 1e-5 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace qdelta::testing
