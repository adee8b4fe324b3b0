// Models over the C interface: logits as recorded, states that are cloned, saved and loaded, and what is refused.
#include "qdelta/model.h"

#include <filesystem>
#include <string>
#include <vector>

#include "capi_testing.h"
#include "files.h"
#include "io/safetensors.h"

namespace qdelta::testing {
namespace {

const std::string kModels = QDELTA_GOLDEN_DIR "/model/";

class CModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = kModels + GetParam();
    ASSERT_TRUE(ok(qdelta_model_open(folder_.c_str(), nullptr, &model_)));
    const SafetensorsFile file = SafetensorsFile::open(folder_ + "/expected.safetensors");
    const ConstTensorView ids = file.view("input_ids");
    B_ = ids.extent(0);
    T_ = ids.extent(1);
    for (const std::int64_t id : integers_of(ConstTensorView(ids.data, ids.dtype, {B_ * T_}), "input_ids")) {
      ids_.push_back(static_cast<std::int32_t>(id));
    }
    logits_ = to_doubles(file.view("logits"));
    for (std::int64_t b = 0; b <= B_; ++b) offsets_.push_back(b * T_);
    vocabulary_ = static_cast<std::size_t>(qdelta_model_vocab_size(model_));
  }
  void TearDown() override { qdelta_model_free(model_); }

  // The logits that were recorded after token t of sequence b.
  [[nodiscard]] std::vector<double> recorded(std::int64_t b, std::int64_t t) const {
    const auto begin = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(b * T_ + t) * vocabulary_);
    return {logits_.begin() + begin, logits_.begin() + begin + static_cast<std::ptrdiff_t>(vocabulary_)};
  }
  [[nodiscard]] double error(const float* got, const std::vector<double>& expected) const {
    return relative_error(ConstTensorView(reinterpret_cast<const std::byte*>(got), DType::f32,
                                          {static_cast<std::int64_t>(expected.size())}),
                          expected);
  }
  qdelta_status read(const std::int32_t* tokens, std::int64_t count, qdelta_state* state, float* logits) {
    const std::int64_t offsets[] = {0, count};
    return qdelta_model_read(model_, tokens, offsets, 1, &state, QDELTA_LAST_LOGITS, logits);
  }

  std::string folder_;
  qdelta_model* model_ = nullptr;
  std::int64_t B_ = 0, T_ = 0;
  std::vector<std::int32_t> ids_;
  std::vector<std::int64_t> offsets_;
  std::vector<double> logits_;
  std::size_t vocabulary_ = 0;
};
INSTANTIATE_TEST_SUITE_P(All, CModel,
                         ::testing::Values("qdelta_tiny", "qdelta_gva_tied", "gated_deltanet_tiny", "mamba_tiny"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(CModel, LogitsAreTheRecordedOnes) {
  std::vector<float> logits(ids_.size() * vocabulary_);
  ASSERT_TRUE(
      ok(qdelta_model_read(model_, ids_.data(), offsets_.data(), B_, nullptr, QDELTA_ALL_LOGITS, logits.data())));
  EXPECT_LT(error(logits.data(), logits_), 1e-5);
  EXPECT_NE(std::string(qdelta_model_config(model_)).find("hidden_size"), std::string::npos);
  EXPECT_GT(qdelta_model_parameter_count(model_), 0);
}

TEST_P(CModel, StatesContinueWhereverTheyWereCut) {
  const std::int64_t cut = T_ / 2;
  std::vector<float> logits(vocabulary_);
  qdelta_state* state = nullptr;
  qdelta_state* copy = nullptr;
  qdelta_state* loaded = nullptr;
  ASSERT_TRUE(ok(qdelta_state_new(model_, &state)));
  ASSERT_TRUE(ok(read(ids_.data(), cut, state, logits.data())));
  EXPECT_LT(error(logits.data(), recorded(0, cut - 1)), 1e-5);
  EXPECT_EQ(qdelta_state_tokens(state), cut);
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  ASSERT_TRUE(ok(qdelta_state_save(state, path.c_str())));
  ASSERT_TRUE(ok(qdelta_state_clone(state, &copy)));
  ASSERT_TRUE(ok(qdelta_state_load(model_, path.c_str(), &loaded)));
  for (std::int64_t t = cut; t < T_; ++t) {  // the original moves on token by token, the others all at once
    ASSERT_TRUE(ok(read(ids_.data() + t, 1, state, logits.data())));
  }
  EXPECT_LT(error(logits.data(), recorded(0, T_ - 1)), 1e-5);
  for (qdelta_state* other : {copy, loaded}) {
    EXPECT_EQ(qdelta_state_tokens(other), cut);
    ASSERT_TRUE(ok(read(ids_.data() + cut, T_ - cut, other, logits.data())));
    EXPECT_LT(error(logits.data(), recorded(0, T_ - 1)), 1e-5);
    EXPECT_EQ(qdelta_state_tokens(other), T_);
  }
  qdelta_model_free(std::exchange(model_, nullptr));  // states outlive it
  for (qdelta_state* each : {state, copy, loaded}) qdelta_state_free(each);
}

// Sequences of different lengths in one call, some of them continued.
TEST_P(CModel, ABatchOfStates) {
  std::vector<qdelta_state*> states(static_cast<std::size_t>(B_));
  for (qdelta_state*& state : states) ASSERT_TRUE(ok(qdelta_state_new(model_, &state)));
  std::vector<float> logits(vocabulary_ * states.size());
  ASSERT_TRUE(ok(read(ids_.data(), 3, states[0], logits.data())));
  std::vector<std::int32_t> ids(ids_.begin() + 3, ids_.end());
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t b = 1; b <= B_; ++b) offsets.push_back(b * T_ - 3);
  ASSERT_TRUE(
      ok(qdelta_model_read(model_, ids.data(), offsets.data(), B_, states.data(), QDELTA_LAST_LOGITS, logits.data())));
  for (std::int64_t b = 0; b < B_; ++b) {
    EXPECT_LT(error(logits.data() + static_cast<std::size_t>(b) * vocabulary_, recorded(b, T_ - 1)), 1e-5) << b;
  }
  for (qdelta_state* state : states) qdelta_state_free(state);
}

TEST_P(CModel, WhatIsRefusedLeavesTheStatesAlone) {
  qdelta_state* state = nullptr;
  ASSERT_TRUE(ok(qdelta_state_new(model_, &state)));
  std::vector<float> logits(2 * vocabulary_);
  ASSERT_TRUE(ok(read(ids_.data(), 4, state, logits.data())));
  const std::int32_t beyond[] = {0, static_cast<std::int32_t>(vocabulary_)};
  EXPECT_TRUE(refused(read(beyond, 2, state, logits.data()), QDELTA_INVALID_ARGUMENT, {"token 1", "vocabulary"}));
  EXPECT_TRUE(refused(read(beyond, 0, state, logits.data()), QDELTA_INVALID_ARGUMENT, {"offsets"}));
  EXPECT_TRUE(refused(read(beyond, 1, state, nullptr), QDELTA_INVALID_ARGUMENT, {"logits"}));
  qdelta_state* twice[] = {state, state};
  const std::int64_t offsets[] = {0, 1, 2};
  EXPECT_TRUE(refused(qdelta_model_read(model_, ids_.data(), offsets, 2, twice, QDELTA_LAST_LOGITS, logits.data()),
                      QDELTA_INVALID_ARGUMENT, {"states[1]", "twice"}));
  const std::int64_t empty[] = {0, 0, 2};
  EXPECT_TRUE(refused(qdelta_model_read(model_, ids_.data(), empty, 2, nullptr, QDELTA_LAST_LOGITS, logits.data()),
                      QDELTA_INVALID_ARGUMENT, {"sequence 0", "no tokens"}));
  EXPECT_EQ(qdelta_state_tokens(state), 4);
  ASSERT_TRUE(ok(read(ids_.data() + 4, T_ - 4, state, logits.data())));
  EXPECT_LT(error(logits.data(), recorded(0, T_ - 1)), 1e-5);
  qdelta_state_free(state);
}

// As a program has them that was compiled with a later header.
TEST(CModelOptions, LargerOnesAreTakenWhereWhatIsNewIsZero) {
  struct {
    qdelta_model_options options;
    std::uint32_t later = 1;
    unsigned char behind[8];
  } memory;
  std::memset(memory.behind, 0xee, sizeof memory.behind);
  qdelta_model_options* options = &memory.options;
  const std::uint32_t size = offsetof(decltype(memory), behind);
  qdelta_model_options_init_sized(options, size);
  EXPECT_EQ(options->struct_size, size);
  EXPECT_EQ(memory.later, 0U);
  for (const unsigned char byte : memory.behind) EXPECT_EQ(byte, 0xee);
  const std::string folder = kModels + "qdelta_tiny";
  qdelta_model* model = nullptr;
  ASSERT_TRUE(ok(qdelta_model_open(folder.c_str(), options, &model)));
  qdelta_model_free(model);
  memory.later = 1;
  EXPECT_TRUE(refused(qdelta_model_open(folder.c_str(), options, &model), QDELTA_UNSUPPORTED,
                      {"options", "byte 20", "does not know"}));
  qdelta_model_options_init_sized(options, sizeof(qdelta_model_options) - 1);  // no version's: left alone
  EXPECT_EQ(options->struct_size, size);
}

TEST(CModelErrors, FoldersOptionsAndOtherModelsStates) {
  qdelta_model* model = nullptr;
  EXPECT_TRUE(refused(qdelta_model_open("/nowhere", nullptr, &model), QDELTA_IO, {"/nowhere"}));
  const std::string long_name(300, 'a');  // the system says that it cannot look
  EXPECT_TRUE(refused(qdelta_model_open(long_name.c_str(), nullptr, &model), QDELTA_IO, {long_name}));
  EXPECT_TRUE(refused(qdelta_model_open(nullptr, nullptr, &model), QDELTA_INVALID_ARGUMENT, {"folder"}));
  qdelta_model_options options;
  qdelta_model_options_init(&options);
  options.struct_size = 3;
  const std::string folder = kModels + "qdelta_tiny";
  EXPECT_TRUE(refused(qdelta_model_open(folder.c_str(), &options, &model), QDELTA_INVALID_ARGUMENT, {"struct_size"}));
  ASSERT_TRUE(ok(qdelta_model_open(folder.c_str(), nullptr, &model)));
  qdelta_model* other = nullptr;
  ASSERT_TRUE(ok(qdelta_model_open((kModels + "mamba_tiny").c_str(), nullptr, &other)));
  qdelta_state* state = nullptr;
  ASSERT_TRUE(ok(qdelta_state_new(other, &state)));
  const std::int32_t token = 1;
  const std::int64_t offsets[] = {0, 1};
  EXPECT_TRUE(refused(qdelta_model_read(model, &token, offsets, 1, &state, QDELTA_NO_LOGITS, nullptr),
                      QDELTA_INVALID_ARGUMENT, {"states[0]", "another model"}));
  const TemporaryFolder folder_of_state;
  const std::string path = folder_of_state.file("state");
  ASSERT_TRUE(ok(qdelta_state_save(state, path.c_str())));
  qdelta_state* loaded = nullptr;
  EXPECT_TRUE(refused(qdelta_state_load(model, path.c_str(), &loaded), QDELTA_INVALID_ARGUMENT, {"another model"}));
  std::int64_t count = 0;
  EXPECT_FALSE(ok(qdelta_tokenize(model, "text", 4, 0, nullptr, 0, &count)));  // the folder has no tokenizer
  qdelta_state_free(state);
  qdelta_model_free(model);
  qdelta_model_free(other);
}

}  // namespace
}  // namespace qdelta::testing
