// What the C interface refuses, with which status and message; and the small functions.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <thread>

#include "capi_testing.h"

namespace qdelta::testing {
namespace {

class CErrors : public ::testing::Test {
 protected:
  // Forward and backward of the problem after `change` must both be refused, and must not have written anything.
  template <class Change>
  void refuse(qdelta_status status, const std::vector<std::string>& pieces, const Change& change) {
    CProblem c(problem_);
    change(c);
    const std::map<std::string, Tensor> before = outputs();
    EXPECT_TRUE(refused(c.forward(), status, pieces));
    EXPECT_TRUE(refused(c.backward(), status, pieces));
    for (const auto& [name, values] : before) EXPECT_TRUE(same_bits(c.tensors.at(name).values(), values)) << name;
  }
  // What the outputs hold before anything is written.
  [[nodiscard]] std::map<std::string, Tensor> outputs() const {
    CProblem fresh(problem_);
    std::map<std::string, Tensor> result;
    for (const char* name : {"o", "ht", "dq", "dk", "dv", "dg", "dbeta", "dlambda", "dh0"}) {
      result[name] = fresh.tensors.at(name).values();
    }
    return result;
  }

  const Problem problem_{Rule::q_delta, DType::f32, {2, 9, 1, 2, 8, 12}};
};

TEST_F(CErrors, Options) {
  refuse(QDELTA_INVALID_ARGUMENT, {"struct_size", "qdelta_options_init"},
         [](CProblem& c) { c.options.struct_size = 0; });
  refuse(QDELTA_INVALID_ARGUMENT, {"struct_size"}, [](CProblem& c) { c.options.struct_size = 31; });
  refuse(QDELTA_INVALID_ARGUMENT, {"struct_size"}, [](CProblem& c) { c.options.struct_size = 1U << 31U; });
  refuse(QDELTA_INVALID_ARGUMENT, {"chunk", "48"}, [](CProblem& c) { c.options.chunk = 48; });
  refuse(QDELTA_INVALID_ARGUMENT, {"chunk", "-16"}, [](CProblem& c) { c.options.chunk = -16; });
  refuse(QDELTA_INVALID_ARGUMENT, {"threads", "-1"}, [](CProblem& c) { c.options.threads = -1; });
  refuse(QDELTA_INVALID_ARGUMENT, {"scale", "inf"},
         [](CProblem& c) { c.options.scale = std::numeric_limits<float>::infinity(); });
}

// C does not stop anyone from storing any integer in an enum.
template <class Enum>
void store(Enum& field, int value) {
  static_assert(sizeof field == sizeof value);
  std::memcpy(&field, &value, sizeof value);
}

TEST_F(CErrors, RulesAndFormsThatAreNone) {
  for (const int value : {-1, 7, 99}) {
    refuse(QDELTA_INVALID_ARGUMENT, {"rule", std::to_string(value)},
           [=](CProblem& c) { store(c.options.rule, value); });
  }
  for (const int value : {-1, 4, 99}) {
    refuse(QDELTA_INVALID_ARGUMENT, {"form", std::to_string(value)},
           [=](CProblem& c) { store(c.options.form, value); });
  }
}

TEST_F(CErrors, NullArguments) {
  CProblem c(problem_);
  const auto invalid = [](qdelta_status status, const char* name) {
    EXPECT_TRUE(refused(status, QDELTA_INVALID_ARGUMENT, {name, "NULL"}));
  };
  invalid(qdelta_forward(nullptr, &c.in, &c.out), "options");
  invalid(qdelta_forward(&c.options, nullptr, &c.out), "in");
  invalid(qdelta_forward(&c.options, &c.in, nullptr), "out");
  invalid(qdelta_backward(nullptr, &c.in, &c.d_out, &c.d_in), "options");
  invalid(qdelta_backward(&c.options, nullptr, &c.d_out, &c.d_in), "in");
  invalid(qdelta_backward(&c.options, &c.in, nullptr, &c.d_in), "d_out");
  invalid(qdelta_backward(&c.options, &c.in, &c.d_out, nullptr), "d_in");
  EXPECT_EQ(qdelta_chunk_count(nullptr, &c.in), -1);
  EXPECT_NE(std::string(qdelta_last_error()).find("options"), std::string::npos);
  EXPECT_EQ(qdelta_chunk_count(&c.options, nullptr), -1);
  EXPECT_NE(std::string(qdelta_last_error()).find("in is NULL"), std::string::npos);
}

TEST_F(CErrors, MissingTensors) {
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "missing"}, [](CProblem& c) { c.in.q = nullptr; });
  refuse(QDELTA_INVALID_ARGUMENT, {"k", "missing"}, [](CProblem& c) { c.in.k = nullptr; });
  refuse(QDELTA_INVALID_ARGUMENT, {"v", "missing"}, [](CProblem& c) { c.in.v = nullptr; });
  refuse(QDELTA_INVALID_ARGUMENT, {"g", "missing"}, [](CProblem& c) { c.in.g = nullptr; });
  refuse(QDELTA_INVALID_ARGUMENT, {"q_delta", "beta"}, [](CProblem& c) { c.in.beta = nullptr; });
  refuse(QDELTA_INVALID_ARGUMENT, {"q_delta", "lambda"}, [](CProblem& c) { c.in.lambda = nullptr; });
  refuse(QDELTA_INVALID_ARGUMENT, {"missing"}, [](CProblem& c) {
    c.out.o = nullptr;
    c.d_in.dq = nullptr;
  });
  CProblem c(problem_);
  c.d_out.d_o = nullptr;
  EXPECT_TRUE(refused(c.backward(), QDELTA_INVALID_ARGUMENT, {"do", "missing"}));
  for (const auto field : {&qdelta_input_gradients::dk, &qdelta_input_gradients::dv, &qdelta_input_gradients::dg}) {
    CProblem other(problem_);
    other.d_in.*field = nullptr;
    EXPECT_TRUE(refused(other.backward(), QDELTA_INVALID_ARGUMENT, {"missing"}));
  }
}

TEST_F(CErrors, Devices) {
  for (const DLDeviceType device : {kDLCUDA, kDLROCM, kDLMetal}) {
    refuse(QDELTA_UNSUPPORTED, {"k", "device", "CPU"}, [=](CProblem& c) { c.get("k")->device.device_type = device; });
  }
}

TEST_F(CErrors, DevicesOfTheCall) {
  const auto device = [](CProblem& c, DLDeviceType type) { c.options.device = {type, 0}; };
  refuse(QDELTA_UNSUPPORTED, {"options.device", "device type 8"}, [&](CProblem& c) { device(c, kDLMetal); });
  if (!gpu_in_build() || find_gpus().names.empty()) {
    refuse(QDELTA_UNSUPPORTED, {gpu_in_build() ? "GPU" : "no CUDA"}, [&](CProblem& c) { device(c, kDLCUDA); });
  } else {
    refuse(QDELTA_UNSUPPORTED, {"q is on the CPU", "CUDA device 0"}, [&](CProblem& c) { device(c, kDLCUDA); });
  }
}

TEST_F(CErrors, WorkspacesThatAreTooSmallOrNotAligned) {
  std::vector<std::byte> memory(64);
  refuse(QDELTA_INVALID_ARGUMENT, {"workspace", "64 bytes", "needed"}, [&](CProblem& c) {
    c.options.form = QDELTA_CHUNK;
    c.options.workspace = memory.data();
    c.options.workspace_size = memory.size();
  });
  AlignedBuffer large(1 << 20);
  refuse(QDELTA_INVALID_ARGUMENT, {"workspace", "multiple of 64"}, [&](CProblem& c) {
    c.options.form = QDELTA_CHUNK;
    c.options.workspace = large.data() + 4;
    c.options.workspace_size = large.size() - 4;
  });
}

// What a caller left uninitialised: no member of the enumeration, which the sanitizer would see loaded.
TEST_F(CErrors, NumbersThatAreNoDevice) {
  for (const int number : {-1, 0, 1 << 30}) {
    refuse(QDELTA_UNSUPPORTED, {"k", "device type " + std::to_string(number)},
           [=](CProblem& c) { std::memcpy(&c.get("k")->device.device_type, &number, sizeof(number)); });
  }
}

// Two elements in one place: threads would race for it, and what is there in the end is no result.
TEST_F(CErrors, OutputsWhoseElementsShareMemory) {
  static std::int64_t none[4] = {0, 0, 0, 0};
  static std::int64_t rows_on_rows[4] = {1, 1, 1, 1};
  for (std::int64_t* strides : {none, rows_on_rows}) {
    for (const auto field : {&qdelta_outputs::o, &qdelta_outputs::ht}) {
      CProblem c(problem_);
      const_cast<DLTensor*>(c.out.*field)->strides = strides;
      EXPECT_TRUE(refused(c.forward(), QDELTA_INVALID_ARGUMENT, {"strides", "one place"}));
    }
    for (const auto field : {&qdelta_input_gradients::dq, &qdelta_input_gradients::dg, &qdelta_input_gradients::dh0}) {
      CProblem c(problem_);
      const_cast<DLTensor*>(c.d_in.*field)->strides = strides;
      EXPECT_TRUE(refused(c.backward(), QDELTA_INVALID_ARGUMENT, {"strides", "one place"}));
    }
  }
}

TEST_F(CErrors, Types) {
  const auto with_type = [](DLDataType type) { return [=](CProblem& c) { c.get("v")->dtype = type; }; };
  refuse(QDELTA_UNSUPPORTED, {"v", "8 bits"}, with_type({kDLInt, 8, 1}));
  refuse(QDELTA_UNSUPPORTED, {"v", "128 bits"}, with_type({kDLFloat, 128, 1}));
  refuse(QDELTA_UNSUPPORTED, {"v", "64 bits"}, with_type({kDLComplex, 64, 1}));
  refuse(QDELTA_UNSUPPORTED, {"v", "2 lanes"}, with_type({kDLFloat, 32, 2}));
  refuse(QDELTA_UNSUPPORTED, {"v", "0 lanes"}, with_type({kDLFloat, 32, 0}));
  refuse(QDELTA_INVALID_ARGUMENT, {"v", "I32", "F32 or BF16"}, with_type({kDLInt, 32, 1}));
  refuse(QDELTA_INVALID_ARGUMENT, {"h0", "F32"}, [](CProblem& c) { c.get("h0")->dtype = {kDLBfloat, 16, 1}; });
}

TEST_F(CErrors, ShapesAndMemory) {
  static std::int64_t wrong[8] = {2, 9, 1, 7, 1, 1, 1, 1};
  static std::int64_t negative[4] = {2, -9, 1, 8};
  refuse(QDELTA_INVALID_ARGUMENT, {"k", "[2, 9, 1, 7]", "[2, 9, 1, 8]"},
         [](CProblem& c) { c.get("k")->shape = wrong; });
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "negative", "-9"}, [](CProblem& c) { c.get("q")->shape = negative; });
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "no shape"}, [](CProblem& c) { c.get("q")->shape = nullptr; });
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "[B, T, H, K]"}, [](CProblem& c) { c.get("q")->ndim = 3; });
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "[B, T, H, K]"}, [](CProblem& c) { c.get("q")->ndim = 0; });
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "-1 dimensions"}, [](CProblem& c) { c.get("q")->ndim = -1; });
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "8 dimensions"}, [](CProblem& c) {
    c.get("q")->ndim = 8;
    c.get("q")->shape = wrong;
  });
  refuse(QDELTA_INVALID_ARGUMENT, {"g", "null data"}, [](CProblem& c) { c.get("g")->data = nullptr; });
  refuse(QDELTA_INVALID_ARGUMENT, {"beta", "aligned", "4 bytes"}, [](CProblem& c) { c.get("beta")->byte_offset = 2; });
  refuse(QDELTA_INVALID_ARGUMENT, {"beta", "aligned"},
         [](CProblem& c) { c.get("beta")->data = static_cast<std::byte*>(c.get("beta")->data) + 1; });
}

// Numbers that no memory has room for must not overflow on the way to the message.
TEST_F(CErrors, AbsurdSizes) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  static std::int64_t shape[4];
  static std::int64_t strides[4];
  const auto with_shape = [](std::array<std::int64_t, 4> extents) {
    return [=](CProblem& c) {
      std::copy(extents.begin(), extents.end(), shape);
      c.get("q")->shape = shape;
    };
  };
  const auto with_strides = [](std::array<std::int64_t, 4> steps) {
    return [=](CProblem& c) {
      std::copy(steps.begin(), steps.end(), strides);
      c.get("q")->strides = strides;
    };
  };
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "counted", "[4294967296, 4294967296, 1, 8]"},
         with_shape({std::int64_t{1} << 32U, std::int64_t{1} << 32U, 1, 8}));
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "counted"}, with_shape({kMost, kMost, kMost, kMost}));
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "counted"}, with_shape({0, kMost, kMost, kMost}));
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "strides"}, with_strides({kMost, 8, 8, 1}));
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "strides"}, with_strides({-kMost - 1, 8, 8, 1}));
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "strides"}, with_strides({kMost / 16, kMost / 64, 8, 1}));
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "strides"}, with_strides({-(std::int64_t{1} << 59U), 8, 8, 1}));
  refuse(QDELTA_INVALID_ARGUMENT, {"q", "byte_offset"},
         [](CProblem& c) { c.get("q")->byte_offset = std::numeric_limits<std::uint64_t>::max() - 3; });
}

// Nobody steps along an axis of one element, so whatever is said of its stride does no harm.
TEST_F(CErrors, TheStrideOfASingleElementMayBeAnything) {
  static std::int64_t strides[4] = {72, 8, std::numeric_limits<std::int64_t>::max(), 1};
  CProblem c(problem_);
  c.get("q")->strides = strides;
  EXPECT_TRUE(ok(c.forward()));
  EXPECT_TRUE(ok(c.backward()));
  c.expect_results(problem_.expected());
}

// One element, repeated without end: each tensor is possible, what they ask for is not.
TEST_F(CErrors, AbsurdStates) {
  float value = 0;
  static std::int64_t none[4] = {0, 0, 0, 0};
  const auto tensor = [&](std::int64_t* shape, int rank) {
    return DLTensor{&value, {kDLCPU, 0}, rank, {kDLFloat, 32, 1}, shape, none, 0};
  };
  const auto refuse_shapes = [&](std::array<std::int64_t, 4> q_shape, std::array<std::int64_t, 4> v_shape,
                                 const std::vector<std::string>& pieces) {
    DLTensor q = tensor(q_shape.data(), 4);
    DLTensor v = tensor(v_shape.data(), 4);
    DLTensor gate = tensor(v_shape.data(), 3);
    const qdelta_inputs in{&q, &q, &v, &gate, &gate, &gate, nullptr, nullptr};
    const qdelta_outputs out{&v, nullptr, nullptr};
    qdelta_options options;
    qdelta_options_init(&options);
    EXPECT_TRUE(refused(qdelta_forward(&options, &in, &out), QDELTA_INVALID_ARGUMENT, pieces));
    EXPECT_EQ(qdelta_chunk_count(&options, &in), -1);
  };
  constexpr std::int64_t kMany = std::int64_t{1} << 40U;
  refuse_shapes({1, 1, 1, kMany}, {1, 1, 1, kMany}, {"q", "width", "1099511627776"});
  refuse_shapes({1, 1, 1, 8}, {1, 1, 1, kMany}, {"v", "width", "1099511627776"});
  refuse_shapes({kMany, 1, 1, 128}, {kMany, 1, 1, 128}, {"[N, HV, K, V]", "counted"});
  refuse_shapes({1, kMany, 1, 128}, {1, kMany, 1, 256}, {"[chunks, HV, K, V]", "counted"});
}

TEST_F(CErrors, Offsets) {
  const auto with_offsets = [&](const std::vector<std::int64_t>& offsets, const std::vector<std::string>& pieces) {
    Problem packed(Rule::q_delta, DType::f32, {1, 9, 1, 2, 8, 12}, {0, 9});
    packed.offsets = offsets;
    packed.tensors["h0"] = Tensor(DType::f32, {static_cast<std::int64_t>(offsets.size()) - 1, 2, 8, 12});
    CProblem c(packed);
    c.out.ht = nullptr;
    EXPECT_TRUE(refused(c.forward(), QDELTA_INVALID_ARGUMENT, pieces));
    EXPECT_TRUE(refused(c.backward(), QDELTA_INVALID_ARGUMENT, pieces));
    EXPECT_EQ(qdelta_chunk_count(&c.options, &c.in), -1);
  };
  with_offsets({0, 8}, {"cu_seqlens", "8", "9"});
  with_offsets({1, 9}, {"cu_seqlens", "1"});
  with_offsets({0, 5, 4, 9}, {"cu_seqlens", "decreases", "5", "4"});
  with_offsets({0, -1, 9}, {"cu_seqlens"});
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  with_offsets({0, kHuge, -kHuge, 9}, {"cu_seqlens"});

  DlTensor offsets(DType::i64, {3});
  refuse(QDELTA_INVALID_ARGUMENT, {"batch 2"}, [&](CProblem& c) { c.in.cu_seqlens = offsets.get(); });
  DlTensor none(DType::i64, {0});
  refuse(QDELTA_INVALID_ARGUMENT, {"cu_seqlens", "empty"}, [&](CProblem& c) { c.in.cu_seqlens = none.get(); });
  refuse(QDELTA_INVALID_ARGUMENT, {"cu_seqlens"}, [](CProblem& c) { c.in.cu_seqlens = c.get("g"); });
}

TEST_F(CErrors, ChunkStates) {
  DlTensor wrong(DType::f32, {5, 2, 8, 12});
  refuse(QDELTA_INVALID_ARGUMENT, {"chunk_states", "[2, 2, 8, 12]"}, [&](CProblem& c) {
    c.out.chunk_states = wrong.get();
    c.d_out.chunk_states = wrong.get();
  });
  DlTensor right(DType::f32, {2, 2, 8, 12});
  CProblem c(problem_);
  c.options.form = QDELTA_RECURRENT;
  c.out.chunk_states = right.get();
  EXPECT_TRUE(refused(c.forward(), QDELTA_INVALID_ARGUMENT, {"chunk_states", "chunk form"}));
}

TEST_F(CErrors, AFailureDoesNotSpoilTheNextCall) {
  CProblem c(problem_);
  c.options.chunk = 7;
  EXPECT_FALSE(ok(c.forward()));
  c.options.chunk = 0;
  EXPECT_TRUE(ok(c.forward()));
  EXPECT_TRUE(ok(c.backward()));
  c.expect_results(problem_.expected());
  EXPECT_NE(std::string(qdelta_last_error()).find("chunk is 7"), std::string::npos);  // until the next failure
}

TEST(Names, Rules) {
  for (int i = 0; i < static_cast<int>(kRuleCount); ++i) {
    const auto rule = static_cast<qdelta_rule>(i);
    ASSERT_STREQ(qdelta_rule_name(rule), std::string(kRuleTraits[static_cast<std::size_t>(i)].name).c_str());
    qdelta_rule found = i == 0 ? QDELTA_Q_DELTA : QDELTA_LINEAR;
    EXPECT_TRUE(ok(qdelta_rule_from_name(qdelta_rule_name(rule), &found)));
    EXPECT_EQ(found, rule);
  }
  EXPECT_STREQ(qdelta_rule_name(QDELTA_Q_DELTA), "q_delta");
  qdelta_rule none{};
  store(none, 7);  // the only one that C++ lets us pass by value
  EXPECT_EQ(qdelta_rule_name(none), nullptr);
  qdelta_rule unchanged = QDELTA_DELTA;
  EXPECT_TRUE(refused(qdelta_rule_from_name("qdelta", &unchanged), QDELTA_INVALID_ARGUMENT, {"'qdelta'"}));
  EXPECT_TRUE(refused(qdelta_rule_from_name("", &unchanged), QDELTA_INVALID_ARGUMENT, {"''"}));
  EXPECT_EQ(unchanged, QDELTA_DELTA);
  EXPECT_TRUE(refused(qdelta_rule_from_name(nullptr, &unchanged), QDELTA_INVALID_ARGUMENT, {"NULL"}));
  EXPECT_TRUE(refused(qdelta_rule_from_name("delta", nullptr), QDELTA_INVALID_ARGUMENT, {"NULL"}));
}

TEST(Names, StatusAndVersion) {
  EXPECT_STREQ(qdelta_version(), QDELTA_VERSION);
  EXPECT_STREQ(qdelta_status_text(QDELTA_OK), "ok");
  std::vector<std::string> texts;
  for (int i = 0; i <= QDELTA_INTERNAL; ++i) {
    const std::string text = qdelta_status_text(static_cast<qdelta_status>(i));
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(std::count(texts.begin(), texts.end(), text), 0) << text;
    texts.push_back(text);
  }
  qdelta_status unknown{};
  store(unknown, 7);
  EXPECT_STREQ(qdelta_status_text(unknown), "unknown status");
}

TEST(Names, Defaults) {
  qdelta_options options;
  std::memset(&options, 0xff, sizeof options);
  qdelta_options_init(&options);
  EXPECT_EQ(options.struct_size, sizeof options);
  EXPECT_EQ(options.rule, QDELTA_Q_DELTA);
  EXPECT_EQ(options.form, QDELTA_AUTO);
  EXPECT_EQ(options.scale, 0.0F);
  EXPECT_EQ(options.qk_l2norm, 0);
  EXPECT_EQ(options.chunk, 0);
  EXPECT_EQ(options.threads, 0);
  EXPECT_EQ(options.device.device_type, kDLCPU);
  EXPECT_EQ(options.stream, nullptr);
  EXPECT_EQ(options.workspace, nullptr);
  EXPECT_EQ(options.saved, nullptr);
  qdelta_options_init(nullptr);  // does nothing
}

TEST(Threads, EachHasItsOwnLastError) {
  std::thread([] {
    EXPECT_STREQ(qdelta_last_error(), "");
    qdelta_rule rule{};
    EXPECT_FALSE(ok(qdelta_rule_from_name("mine", &rule)));
    std::thread([] {
      EXPECT_STREQ(qdelta_last_error(), "");
      qdelta_rule other{};
      EXPECT_FALSE(ok(qdelta_rule_from_name("theirs", &other)));
      EXPECT_NE(std::string(qdelta_last_error()).find("theirs"), std::string::npos);
    }).join();
    EXPECT_NE(std::string(qdelta_last_error()).find("mine"), std::string::npos);
  }).join();
}

// Rules, shapes and failures from several threads at once: everyone gets their own results and messages.
TEST(Threads, ConcurrentCallsGiveTheRightResults) {
  constexpr int kThreads = 4;
  const int rounds = quick() ? 3 : 20;
  std::vector<Problem> problems;
  std::vector<std::map<std::string, Tensor>> expected;
  for (int i = 0; i < kThreads; ++i) {
    problems.emplace_back(static_cast<Rule>(kRuleCount - 1 - static_cast<std::size_t>(i)), DType::f32,
                          Extents{1 + i % 2, 30 + 17 * i, 1, 2, 8 + 8 * i, 16});
    problems.back().options.threads = 1 + i % 2;
    expected.push_back(problems.back().expected());
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round) {
        CProblem c(problems[i]);
        EXPECT_TRUE(ok(c.forward()));
        EXPECT_TRUE(ok(c.backward()));
        c.expect_results(expected[i]);
        c.options.chunk = 1000 + static_cast<int>(i);
        EXPECT_TRUE(refused(c.forward(), QDELTA_INVALID_ARGUMENT, {"chunk is " + std::to_string(1000 + i)}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace qdelta::testing
