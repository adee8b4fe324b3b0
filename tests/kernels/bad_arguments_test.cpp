// Arguments that cannot work are refused before anything is written, with a message that names the tensor and says what
// would be right.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "kernels/recurrence_case.h"

namespace qdelta::testing {
namespace {

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();

CaseSpec valid_spec() {
  CaseSpec spec;
  spec.batch = 2;
  spec.tokens = 20;
  spec.heads = 2;
  spec.shared = 2;
  spec.key_dim = 6;
  spec.value_dim = 5;
  return spec;
}

template <class Byte>
void set_extent(BasicView<Byte>& view, int axis, std::int64_t extent) {
  view.shape.extent[static_cast<std::size_t>(axis)] = extent;
}

template <class Arguments>
struct BadArgument {
  std::string name;                      // of the test
  std::function<void(Arguments&)> make;  // spoils valid arguments
  std::vector<std::string> message;      // what must stand in the message
};

template <class Arguments>
void expect_refused(const BadArgument<Arguments>& bad, Arguments args, const Device& device = kOneThread) {
  SCOPED_TRACE(bad.name);
  bad.make(args);
  expect_error(Status::invalid_argument, bad.message, [&] { return recurrence_workspace(device, args); });
  AlignedBuffer plenty(std::size_t{1} << 22);
  Workspace space({plenty.data(), plenty.size()});
  expect_error(Status::invalid_argument, bad.message, [&] {
    if constexpr (std::is_same_v<Arguments, RecurrenceForward>) recurrence_forward(device, args, space);
    if constexpr (std::is_same_v<Arguments, RecurrenceBackward>) recurrence_backward(device, args, space);
    if constexpr (std::is_same_v<Arguments, RecurrenceStep>) recurrence_step(device, args, space);
    return 0;
  });
}

// Numbers of threads that no device can have.
template <class Arguments>
void expect_threads_refused(const Arguments& args) {
  const auto unspoilt = [](Arguments&) {};
  expect_refused<Arguments>({"negative threads", unspoilt, {"threads is -1"}}, args, {.threads = -1});
  expect_refused<Arguments>({"one thread too many", unspoilt, {"threads is 4097"}}, args, {.threads = 4097});
  expect_refused<Arguments>({"too many threads", unspoilt, {"threads is 5000", "4096"}}, args, {.threads = 5000});
}

// ---------------------------------------------------------------------------------------------------------------------
// What forward and backward share.

std::vector<BadArgument<RecurrenceInputs>> bad_inputs() {
  using In = RecurrenceInputs;
  static const std::vector<std::int64_t> late{1, 20};
  static const std::vector<std::int64_t> decreasing{0, 12, 11, 20};
  static const std::vector<std::int64_t> too_short{0, 19};
  static const std::vector<std::int64_t> too_long{0, 21};
  static const std::vector<std::int64_t> far_away{0, kFar, 20};
  static const std::vector<std::int64_t> far_end{0, kFar};
  static const std::vector<std::int64_t> good{0, 4, 20};
  const auto packed = [](const std::vector<std::int64_t>& offsets) {
    return [&offsets](In& in) {
      for (ConstTensorView* view : {&in.q, &in.k, &in.v, &in.g, &in.beta, &in.lambda}) set_extent(*view, 0, 1);
      in.h0 = {};
      in.cu_seqlens = offsets;
    };
  };
  return {
      {"q missing", [](In& in) { in.q = {}; }, {"q [B, T, H, K] is missing"}},
      {"k missing", [](In& in) { in.k = {}; }, {"k [B, T, H, K] is missing"}},
      {"v missing", [](In& in) { in.v = {}; }, {"v [B, T, HV, V] is missing"}},
      {"g missing", [](In& in) { in.g = {}; }, {"g [B, T, HV] is missing"}},
      {"q of rank 3", [](In& in) { in.q.shape.rank = 3; }, {"q has shape [2, 20, 2]", "[B, T, H, K]"}},
      {"v of rank 5", [](In& in) { in.v.shape.rank = 5; }, {"v has shape [2, 20, 4, 5, 0]", "[B, T, HV, V]"}},
      {"k of rank 3", [](In& in) { in.k.shape.rank = 3; }, {"k has shape [2, 20, 2]", "[B, T, H, K]"}},
      {"no heads", [](In& in) { set_extent(in.q, 2, 0); }, {"q has no heads"}},
      {"no value heads", [](In& in) { set_extent(in.v, 2, 0); }, {"v has 0 heads", "multiple of the 2 heads"}},
      {"value heads no multiple", [](In& in) { set_extent(in.v, 2, 3); }, {"v has 3 heads", "multiple of the 2 heads"}},
      {"no key width", [](In& in) { set_extent(in.q, 3, 0); }, {"q has width 0"}},
      {"scale infinite", [](In& in) { in.scale = INFINITY; }, {"scale is inf"}},
      {"scale NaN", [](In& in) { in.scale = NAN; }, {"scale is nan"}},
      {"q as F64", [](In& in) { in.q.dtype = DType::f64; }, {"q is F64", "F32 or BF16"}},
      {"k as I32", [](In& in) { in.k.dtype = DType::i32; }, {"k is I32", "F32 or BF16"}},
      {"v as F16", [](In& in) { in.v.dtype = DType::f16; }, {"v is F16", "F32 or BF16"}},
      {"g as U8", [](In& in) { in.g.dtype = DType::u8; }, {"g is U8", "F32 or BF16"}},
      {"beta as F64", [](In& in) { in.beta.dtype = DType::f64; }, {"beta is F64", "F32 or BF16"}},
      {"lambda as I64", [](In& in) { in.lambda.dtype = DType::i64; }, {"lambda is I64", "F32 or BF16"}},
      {"k narrower than q",
       [](In& in) { set_extent(in.k, 3, 5); },
       {"k has shape [2, 20, 2, 5]", "[B, T, H, K] = [2, 20, 2, 6]"}},
      {"k with other heads", [](In& in) { set_extent(in.k, 2, 1); }, {"k has shape [2, 20, 1, 6]"}},
      {"v with another batch",
       [](In& in) { set_extent(in.v, 0, 1); },
       {"v has shape [1, 20, 4, 5]", "[B, T, HV, V] = [2, 20, 4, 5]"}},
      {"v with other tokens", [](In& in) { set_extent(in.v, 1, 19); }, {"v has shape [2, 19, 4, 5]"}},
      {"g for query heads",
       [](In& in) { set_extent(in.g, 2, 2); },
       {"g has shape [2, 20, 2]", "[B, T, HV] = [2, 20, 4]"}},
      {"beta with other tokens", [](In& in) { set_extent(in.beta, 1, 1); }, {"beta has shape [2, 1, 4]"}},
      {"lambda of rank 2", [](In& in) { in.lambda.shape.rank = 2; }, {"lambda has shape [2, 20]"}},
      {"beta not read, yet misshapen",
       [](In& in) {
         in.rule = Rule::linear;
         set_extent(in.beta, 1, 1);
       },
       {"beta has shape [2, 1, 4]"}},
      {"beta missing", [](In& in) { in.beta = {}; }, {"rule q_delta needs beta [B, T, HV]"}},
      {"lambda missing", [](In& in) { in.lambda = {}; }, {"rule q_delta needs lambda [B, T, HV]"}},
      {"beta missing for mamba2",
       [](In& in) {
         in.rule = Rule::mamba2;
         in.beta = {};
       },
       {"rule mamba2 needs beta"}},
      {"h0 for another batch",
       [](In& in) { set_extent(in.h0, 0, 1); },
       {"h0 has shape [1, 4, 6, 5]", "[N, HV, K, V] = [2, 4, 6, 5]"}},
      {"h0 the other way round",
       [](In& in) {
         set_extent(in.h0, 2, 5);
         set_extent(in.h0, 3, 6);
       },
       {"h0 has shape [2, 4, 5, 6]"}},
      {"h0 as BF16", [](In& in) { in.h0.dtype = DType::bf16; }, {"h0 is BF16", "states are F32"}},
      {"cu_seqlens with a batch", [](In& in) { in.cu_seqlens = good; }, {"cu_seqlens", "batch 2"}},
      {"cu_seqlens starts late", packed(late), {"cu_seqlens starts with 1, expected 0"}},
      {"cu_seqlens decreases", packed(decreasing), {"cu_seqlens decreases from 12 to 11 at entry 2"}},
      {"cu_seqlens ends early", packed(too_short), {"cu_seqlens ends with 19", "20 tokens"}},
      {"cu_seqlens ends late", packed(too_long), {"cu_seqlens ends with 21", "20 tokens"}},
      {"cu_seqlens far away", packed(far_away), {"cu_seqlens decreases from 9223372036854775807 to 20"}},
      {"cu_seqlens ends far away", packed(far_end), {"cu_seqlens ends with 9223372036854775807"}},
      {"h0 for other sequences",
       [&](In& in) {
         const ConstTensorView h0 = in.h0;
         packed(good)(in);
         in.h0 = h0;
         set_extent(in.h0, 0, 3);
       },
       {"h0 has shape [3, 4, 6, 5]", "[N, HV, K, V] = [2, 4, 6, 5]"}},
  };
}

std::vector<BadArgument<Execution>> bad_executions() {
  using How = Execution;
  return {
      {"chunk of 48", [](How& how) { how.chunk = 48; }, {"chunk is 48", "16, 32, 64 or 128"}},
      {"chunk of 256", [](How& how) { how.chunk = 256; }, {"chunk is 256"}},
      {"negative chunk", [](How& how) { how.chunk = -16; }, {"chunk is -16"}},
  };
}

// ---------------------------------------------------------------------------------------------------------------------
// Sequences.

class BadArguments : public ::testing::Test {
 protected:
  RecurrenceCase problem_ = random_case(valid_spec(), 101);
  Results<Tensor> out_ = make_results(valid_spec());
  const RunOptions how_{Form::chunk, 16, 1, true};

  RecurrenceForward forward() { return forward_arguments(problem_, out_, how_); }
  RecurrenceBackward backward() { return backward_arguments(problem_, out_, how_); }

  // Whatever was refused, nothing was written.
  void TearDown() override { expect_same_bits(out_, make_results(valid_spec())); }
};

TEST_F(BadArguments, OfTheInputs) {
  for (const auto& bad : bad_inputs()) {
    expect_refused<RecurrenceForward>({bad.name, [&](auto& args) { bad.make(args.in); }, bad.message}, forward());
    expect_refused<RecurrenceBackward>({bad.name, [&](auto& args) { bad.make(args.in); }, bad.message}, backward());
    RecurrenceInputs in = problem_.inputs();
    bad.make(in);
    expect_error(Status::invalid_argument, bad.message, [&] { return recurrence_chunk_count(in, how_.execution()); });
  }
}

TEST_F(BadArguments, OfTheExecution) {
  for (const Form form : {Form::chunk, Form::recurrent, Form::oracle}) {
    for (const auto& bad : bad_executions()) {
      const auto make = [&](auto& args) {
        args.run.form = form;
        bad.make(args.run);
      };
      expect_refused<RecurrenceForward>({bad.name, make, bad.message}, forward());
      expect_refused<RecurrenceBackward>({bad.name, make, bad.message}, backward());
    }
    RecurrenceForward forward_args = forward();
    RecurrenceBackward backward_args = backward();
    forward_args.run.form = backward_args.run.form = form;
    expect_threads_refused(forward_args);
    expect_threads_refused(backward_args);
  }
}

TEST_F(BadArguments, OfTheForward) {
  using F = RecurrenceForward;
  Tensor states(DType::f32, {4, 4, 6, 5});  // two chunks of 16 for each of two sequences
  const std::vector<BadArgument<F>> all{
      {"o missing", [](F& f) { f.o = {}; }, {"o [B, T, HV, V] is missing"}},
      {"o misshapen", [](F& f) { set_extent(f.o, 3, 6); }, {"o has shape [2, 20, 4, 6]", "[2, 20, 4, 5]"}},
      {"o as F64", [](F& f) { f.o.dtype = DType::f64; }, {"o is F64"}},
      {"ht misshapen", [](F& f) { set_extent(f.ht, 1, 2); }, {"ht has shape [2, 2, 6, 5]", "[2, 4, 6, 5]"}},
      {"ht as BF16", [](F& f) { f.ht.dtype = DType::bf16; }, {"ht is BF16", "states are F32"}},
      {"chunk_states misshapen",
       [&](F& f) {
         f.chunk_states = states.view();
         set_extent(f.chunk_states, 0, 3);
       },
       {"chunk_states has shape [3, 4, 6, 5]", "[chunks, HV, K, V] = [4, 4, 6, 5]"}},
      {"chunk_states for another chunk length",
       [&](F& f) {
         f.chunk_states = states.view();
         f.run.chunk = 32;
       },
       {"chunk_states has shape [4, 4, 6, 5]", "[2, 4, 6, 5]"}},
      {"chunk_states as BF16",
       [&](F& f) {
         f.chunk_states = states.view();
         f.chunk_states.dtype = DType::bf16;
       },
       {"chunk_states is BF16"}},
      {"chunk_states of the blocked recurrence",
       [&](F& f) {
         f.chunk_states = states.view();
         f.run.form = Form::recurrent;
       },
       {"chunk_states", "chunk form only"}},
  };
  for (const auto& bad : all) expect_refused(bad, forward());
}

TEST_F(BadArguments, OfTheBackward) {
  using B = RecurrenceBackward;
  Tensor states(DType::f32, {4, 4, 6, 5});
  const std::vector<BadArgument<B>> all{
      {"do missing", [](B& b) { b.d_o = {}; }, {"do [B, T, HV, V] is missing"}},
      {"do misshapen", [](B& b) { set_extent(b.d_o, 1, 21); }, {"do has shape [2, 21, 4, 5]"}},
      {"do as I8", [](B& b) { b.d_o.dtype = DType::i8; }, {"do is I8"}},
      {"dht misshapen", [](B& b) { set_extent(b.d_ht, 0, 3); }, {"dht has shape [3, 4, 6, 5]"}},
      {"dht as F64", [](B& b) { b.d_ht.dtype = DType::f64; }, {"dht is F64", "states are F32"}},
      {"chunk_states misshapen",
       [&](B& b) {
         b.chunk_states = states.view();
         set_extent(b.chunk_states, 0, 5);
       },
       {"chunk_states has shape [5, 4, 6, 5]"}},
      {"dq missing", [](B& b) { b.dq = {}; }, {"dq [B, T, H, K] is missing"}},
      {"dk missing", [](B& b) { b.dk = {}; }, {"dk [B, T, H, K] is missing"}},
      {"dv missing", [](B& b) { b.dv = {}; }, {"dv [B, T, HV, V] is missing"}},
      {"dg missing", [](B& b) { b.dg = {}; }, {"dg [B, T, HV] is missing"}},
      {"dq for value heads", [](B& b) { set_extent(b.dq, 2, 4); }, {"dq has shape [2, 20, 4, 6]", "[2, 20, 2, 6]"}},
      {"dk misshapen", [](B& b) { set_extent(b.dk, 3, 7); }, {"dk has shape [2, 20, 2, 7]"}},
      {"dv misshapen", [](B& b) { set_extent(b.dv, 0, 1); }, {"dv has shape [1, 20, 4, 5]"}},
      {"dg misshapen", [](B& b) { set_extent(b.dg, 2, 2); }, {"dg has shape [2, 20, 2]"}},
      {"dbeta misshapen", [](B& b) { set_extent(b.dbeta, 2, 2); }, {"dbeta has shape [2, 20, 2]"}},
      {"dlambda misshapen", [](B& b) { set_extent(b.dlambda, 1, 2); }, {"dlambda has shape [2, 2, 4]"}},
      {"dh0 misshapen", [](B& b) { set_extent(b.dh0, 3, 4); }, {"dh0 has shape [2, 4, 6, 4]"}},
      {"dq as F64", [](B& b) { b.dq.dtype = DType::f64; }, {"dq is F64"}},
      {"dg as I32", [](B& b) { b.dg.dtype = DType::i32; }, {"dg is I32"}},
      {"dh0 as BF16", [](B& b) { b.dh0.dtype = DType::bf16; }, {"dh0 is BF16", "states are F32"}},
  };
  for (const auto& bad : all) expect_refused(bad, backward());
}

TEST_F(BadArguments, AWorkspaceTooSmall) {
  const RecurrenceForward forward_args = forward();
  const RecurrenceBackward backward_args = backward();
  const std::size_t forward_bytes = recurrence_workspace(kOneThread, forward_args);
  const std::size_t backward_bytes = recurrence_workspace(kOneThread, backward_args);
  ASSERT_GT(forward_bytes, 0U);
  ASSERT_GT(backward_bytes, 0U);
  AlignedBuffer space(std::max(forward_bytes, backward_bytes));
  expect_error(Status::invalid_argument,
               {"workspace", std::to_string(forward_bytes - 1), std::to_string(forward_bytes)}, [&] {
                 Workspace workspace({space.data(), forward_bytes - 1});
                 recurrence_forward(kOneThread, forward_args, workspace);
                 return 0;
               });
  expect_error(Status::invalid_argument, {"workspace", "0 bytes", std::to_string(backward_bytes)}, [&] {
    Workspace workspace{std::span<std::byte>()};
    recurrence_backward(kOneThread, backward_args, workspace);
    return 0;
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps: two rows on a pool of three states.

class BadStepArguments : public ::testing::Test {
 protected:
  static CaseSpec spec() {
    CaseSpec made = valid_spec();
    made.tokens = 1;
    return made;
  }

  RecurrenceCase problem_ = random_case(spec(), 102);
  Tensor pool_ = nan_tensor(DType::f32, {3, 4, 6, 5});
  Tensor o_ = nan_tensor(DType::f32, spec().values());
  Tensor index_{DType::i64, {2}};

  RecurrenceStep step() { return step_arguments(problem_, 0, o_.view(), pool_.view()); }

  void TearDown() override {
    EXPECT_TRUE(same_bits(pool_, nan_tensor(DType::f32, {3, 4, 6, 5})));
    EXPECT_TRUE(same_bits(o_, nan_tensor(DType::f32, spec().values())));
  }
};

TEST_F(BadStepArguments, OfTheTensors) {
  using S = RecurrenceStep;
  const std::vector<BadArgument<S>> all{
      {"q missing", [](S& s) { s.q = {}; }, {"q [R, H, K] is missing"}},
      {"k missing", [](S& s) { s.k = {}; }, {"k [R, H, K] is missing"}},
      {"v missing", [](S& s) { s.v = {}; }, {"v [R, HV, V] is missing"}},
      {"g missing", [](S& s) { s.g = {}; }, {"g [R, HV] is missing"}},
      {"beta missing", [](S& s) { s.beta = {}; }, {"rule q_delta needs beta [R, HV]"}},
      {"lambda missing", [](S& s) { s.lambda = {}; }, {"rule q_delta needs lambda [R, HV]"}},
      {"states missing", [](S& s) { s.states = {}; }, {"states [P, HV, K, V] is missing"}},
      {"o missing", [](S& s) { s.o = {}; }, {"o [R, HV, V] is missing"}},
      {"q of rank 4", [](S& s) { s.q.shape.rank = 4; }, {"q has shape [2, 2, 6,", "[R, H, K]"}},
      {"v of rank 2", [](S& s) { s.v.shape.rank = 2; }, {"v has shape [2, 4]", "[R, HV, V]"}},
      {"states of rank 3", [](S& s) { s.states.shape.rank = 3; }, {"states has shape [3, 4, 6]", "[P, HV, K, V]"}},
      {"no heads", [](S& s) { set_extent(s.q, 1, 0); }, {"q has no heads"}},
      {"value heads no multiple", [](S& s) { set_extent(s.v, 1, 3); }, {"v has 3 heads", "2 heads"}},
      {"no key width", [](S& s) { set_extent(s.q, 2, 0); }, {"q has width 0"}},
      {"scale infinite", [](S& s) { s.scale = -INFINITY; }, {"scale is -inf"}},
      {"k misshapen", [](S& s) { set_extent(s.k, 2, 7); }, {"k has shape [2, 2, 7]", "[R, H, K] = [2, 2, 6]"}},
      {"v with other rows", [](S& s) { set_extent(s.v, 0, 3); }, {"v has shape [3, 4, 5]"}},
      {"g misshapen", [](S& s) { set_extent(s.g, 1, 2); }, {"g has shape [2, 2]", "[R, HV] = [2, 4]"}},
      {"beta misshapen", [](S& s) { set_extent(s.beta, 0, 1); }, {"beta has shape [1, 4]"}},
      {"lambda misshapen", [](S& s) { set_extent(s.lambda, 0, 1); }, {"lambda has shape [1, 4]"}},
      {"states misshapen", [](S& s) { set_extent(s.states, 2, 5); }, {"states has shape [3, 4, 5, 5]", "[3, 4, 6, 5]"}},
      {"o misshapen", [](S& s) { set_extent(s.o, 2, 4); }, {"o has shape [2, 4, 4]"}},
      {"q as F64", [](S& s) { s.q.dtype = DType::f64; }, {"q is F64"}},
      {"states as BF16", [](S& s) { s.states.dtype = DType::bf16; }, {"states is BF16", "states are F32"}},
      {"rows of states not contiguous",
       [](S& s) { s.states.stride[3] = 2; },
       {"rows of states must be contiguous", "stride is 2"}},
  };
  for (const auto& bad : all) expect_refused(bad, step());
}

TEST_F(BadStepArguments, OfTheThreads) { expect_threads_refused(step()); }

TEST_F(BadStepArguments, OfTheIndex) {
  using S = RecurrenceStep;
  const auto with_index = [&](std::int64_t first, std::int64_t second) {
    return [this, first, second](S& s) {
      index_.as<std::int64_t>()[0] = first;
      index_.as<std::int64_t>()[1] = second;
      s.index = index_.view();
    };
  };
  const std::vector<BadArgument<S>> all{
      {"more rows than states", [](S& s) { set_extent(s.states, 0, 1); }, {"2 rows but only 1 states", "no index"}},
      {"beyond the pool", with_index(0, 3), {"index[1] is 3", "3 states"}},
      {"far beyond the pool", with_index(kFar, 0), {"index[0] is 9223372036854775807"}},
      {"negative", with_index(-1, 0), {"index[0] is -1", "3 states"}},
      {"twice the same", with_index(2, 2), {"index names state 2 twice"}},
      {"as F32",
       [&](S& s) {
         with_index(0, 1)(s);
         s.index.dtype = DType::f32;
       },
       {"index is F32", "I32 or I64"}},
      {"too long",
       [&](S& s) {
         with_index(0, 1)(s);
         set_extent(s.index, 0, 3);
       },
       {"index has shape [3]", "[R] = [2]"}},
      {"of rank 2",
       [&](S& s) {
         with_index(0, 1)(s);
         s.index.shape = {2, 1};
       },
       {"index has shape [2, 1]"}},
  };
  for (const auto& bad : all) expect_refused(bad, step());
}

TEST_F(BadStepArguments, AWorkspaceTooSmall) {
  const RecurrenceStep args = step();
  const std::size_t bytes = recurrence_workspace(kOneThread, args);
  AlignedBuffer space(bytes);
  expect_error(Status::invalid_argument, {"workspace", std::to_string(bytes - 1), std::to_string(bytes)}, [&] {
    Workspace workspace({space.data(), bytes - 1});
    recurrence_step(kOneThread, args, workspace);
    return 0;
  });
}

}  // namespace
}  // namespace qdelta::testing
