// The states on entry to the chunks, which the forward can leave for the backward.
#include <gtest/gtest.h>

#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

Tensor saved_states(const RecurrenceCase& problem, const RunOptions& how, Results<Tensor>& out) {
  const std::int64_t chunks = recurrence_chunk_count(problem.inputs(), how.execution());
  const CaseSpec& spec = problem.spec;
  Tensor states = nan_tensor(DType::f32, {chunks, spec.value_heads(), spec.key_dim, spec.value_dim});
  RecurrenceForward args = forward_arguments(problem, out, how);
  args.chunk_states = states.view();
  run(args, how.device());
  return states;
}

class ChunkStatesOf : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, ChunkStatesOf, ::testing::ValuesIn(all_rules()), rule_test_name);

// With saved states and without: the same gradients, to the last bit. Also where the forward
// would be the blocked recurrence if it had no states to leave.
TEST_P(ChunkStatesOf, GiveTheBackwardWhatItWouldCompute) {
  for (const int chunk : kChunkLengths) {
    for (const std::int64_t tokens : {0, 1, 8, 33, 150}) {
      for (const int threads : {1, 3}) {
        CaseSpec spec;
        spec.rule = GetParam();
        spec.tokens = tokens;
        spec.heads = 1;
        spec.shared = 2;
        spec.key_dim = 17;
        spec.value_dim = 70;
        if (threads == 3) spec.cu_seqlens = {0, 0, tokens / 3, tokens, tokens};
        SCOPED_TRACE(describe(spec));
        const RecurrenceCase problem = random_case(spec, 11);
        const RunOptions how{Form::chunk, chunk, threads, true};
        Results<Tensor> with = make_results(spec);
        const Tensor states = saved_states(problem, how, with);
        RecurrenceBackward args = backward_arguments(problem, with, how);
        args.chunk_states = states.view();
        run(args, how.device());
        Results<Tensor> without = run_both(problem, how);
        // The blocked recurrence is not the chunk form, so o and ht need not be the same bits.
        if (tokens <= 8) {
          EXPECT_LE(relative_error(with.o.view(), to_doubles(without.o.view())), 1e-6);
          EXPECT_LE(relative_error(with.ht.view(), to_doubles(without.ht.view())), 1e-6);
          for (Results<Tensor>* results : {&with, &without})
            for (Tensor* tensor : {&results->o, &results->ht}) *tensor = Tensor();
        }
        expect_same_bits(with, without);
      }
    }
  }
}

// The state on entry to a chunk is the final state of everything before it.
TEST_P(ChunkStatesOf, AreTheStatesOfThePrefixes) {
  CaseSpec spec;
  spec.rule = GetParam();
  spec.tokens = 100;
  spec.cu_seqlens = {0, 60, 60, 100};
  spec.heads = 2;
  spec.key_dim = 9;
  spec.value_dim = 21;
  const RecurrenceCase problem = random_case(spec, 12);
  const RunOptions how{Form::chunk, 32, 1, true};
  Results<Tensor> out = make_results(spec);
  const Tensor states = saved_states(problem, how, out);
  ASSERT_EQ(states.shape()[0], 2 + 0 + 2);

  const OracleInputs<double> in = oracle_inputs(problem);
  std::int64_t chunk_index = 0;
  for (std::size_t n = 0; n < 3; ++n) {
    for (std::int64_t first = spec.cu_seqlens[n]; first < spec.cu_seqlens[n + 1]; first += 32) {
      // As sequences: what lies before n, the prefix of n, and the rest; the state of the second is the one.
      OracleShape shape = oracle_shape(spec);
      shape.offsets = {0, spec.cu_seqlens[n], first};
      OracleInputs<double> prefix = in;
      const auto size = static_cast<std::int64_t>(in.h0.size()) / spec.sequences();
      prefix.h0.assign(in.h0.begin(), in.h0.begin() + size);
      prefix.h0.insert(prefix.h0.end(), in.h0.begin() + static_cast<std::int64_t>(n) * size,
                       in.h0.begin() + static_cast<std::int64_t>(n + 1) * size);
      const std::vector<double> ht = oracle_forward(shape, prefix).ht;
      const std::vector<double> expected(ht.begin() + size, ht.end());
      EXPECT_LE(relative_error(narrowed(states.view(), 0, chunk_index, 1), expected), 1e-6) << "chunk " << chunk_index;
      ++chunk_index;
    }
  }
}

TEST(ChunkCount, IsTheSumOverSequences) {
  CaseSpec spec;
  spec.batch = 3;
  spec.tokens = 65;
  const auto count = [](const CaseSpec& of, int chunk) {
    return recurrence_chunk_count(random_case(of, 1).inputs(), {.form = Form::chunk, .chunk = chunk});
  };
  EXPECT_EQ(count(spec, 64), 6);
  EXPECT_EQ(count(spec, 16), 15);
  EXPECT_EQ(count(spec, 0), count(spec, kDefaultChunk));
  spec.batch = 1;
  spec.cu_seqlens = {0, 0, 1, 17, 65};
  EXPECT_EQ(count(spec, 16), 0 + 1 + 1 + 3);
  spec.tokens = 0;
  spec.cu_seqlens.clear();
  EXPECT_EQ(count(spec, 16), 0);
}

}  // namespace
}  // namespace qdelta::testing
