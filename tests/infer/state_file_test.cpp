// States on disk: they come back bit for bit, and only to the model they are of.
#include "infer/state_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "cli/cli_testing.h"
#include "generating_case.h"
#include "io/safetensors.h"
#include "model/checkpoint.h"

namespace qdelta::testing {
namespace {

class StateFile : public ::testing::Test {
 protected:
  StateFile() {
    const ByteTokenizer tokenizer;
    Generator generator(*model_, tokenizer, states_);
    static_cast<void>(generator.read(bytes_of("The river runs past the mill"), 1));
    save_state(path_, *model_, states_, 1, {.tokens = 28, .token_hash = 99, .pending = 65});
  }
  [[nodiscard]] SavedState load(const LanguageModel& model) const {
    ModelStates states(model.config(), 1);
    return load_state(path_, model, states, 0);
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("state");
  std::unique_ptr<LanguageModel> model_ = speaking_model(speaking_config());
  ModelStates states_{model_->config(), 2};
};

TEST_F(StateFile, ComesBackAsItWas) {
  ModelStates loaded(model_->config(), 3);
  const SavedState info = load_state(path_, *model_, loaded, 2);
  EXPECT_EQ(info.tokens, 28);
  EXPECT_EQ(info.token_hash, 99U);
  EXPECT_EQ(info.pending, 65);
  const auto saved = [&](const ModelStates& states, std::int64_t slot) {
    save_state(folder_.file("again"), *model_, states, slot, info);
    return read_file(folder_.file("again"));
  };
  const std::string file = read_file(path_);
  EXPECT_TRUE(saved(loaded, 2) == file);
  const std::string empty = saved(ModelStates(model_->config(), 1), 0);
  EXPECT_FALSE(empty == file);
  EXPECT_TRUE(saved(loaded, 1) == empty);  // the places beside it stay empty
}

// Every layer's mixer says what its part of a state is.
TEST_F(StateFile, OfLayersThatDiffer) {
  const auto hybrid = speaking_model(speaking_config(kHybrid));
  const std::string path = folder_.file("hybrid");
  save_state(path, *hybrid, ModelStates(hybrid->config(), 1), 0, {});
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.names().size(), 6U);
  for (const char* layer : {"0", "2"}) {
    EXPECT_EQ(file.view(std::string("conv.") + layer).shape, Shape({1, 3, 64}));
    EXPECT_EQ(file.view(std::string("recurrent.") + layer).shape, Shape({1, 2, 8, 16}));
  }
  EXPECT_EQ(file.view("conv.1").shape, Shape({1, 3, 64}));
  EXPECT_EQ(file.view("recurrent.1").shape, Shape({1, 16, 64}));
}

TEST_F(StateFile, WithoutAPendingToken) {
  save_state(path_, *model_, states_, 0, {});
  const SavedState info = load(*model_);
  EXPECT_EQ(info.pending, -1);
  EXPECT_EQ(info.tokens, 0);
}

TEST_F(StateFile, IsRefusedByEveryOtherModel) {
  const auto refused = [&](const LanguageModel& model) {
    expect_error(Status::invalid_argument, {path_, "another model"}, [&] { return load(model); });
  };
  refused(*speaking_model(speaking_config(), 2));
  refused(*speaking_model(speaking_config(Rule::gated_delta)));
  ModelConfig wider = speaking_config();
  wider.norm_eps = 1e-5;  // the same parameters, but they mean something else
  refused(*speaking_model(wider));
  for (const NamedSlot& tensor : model_->layout().tensors) {
    float& last = model_->parameters()[static_cast<std::size_t>(tensor.slot.offset + tensor.slot.shape.elements() - 1)];
    const float before = last;
    last += 1;
    refused(*model_);
    last = before;
  }
  EXPECT_NO_THROW(static_cast<void>(load(*model_)));
}

TEST_F(StateFile, TheHashOfTokensKnowsTheirOrderAndContinues) {
  const std::vector<std::int32_t> all{1, 2, 3, 4};
  const std::vector<std::int32_t> swapped{1, 3, 2, 4};
  const std::span<const std::int32_t> view = all;
  EXPECT_EQ(hash_tokens(hash_tokens(0, view.first(1)), view.subspan(1)), hash_tokens(0, all));
  EXPECT_NE(hash_tokens(0, swapped), hash_tokens(0, all));
  EXPECT_NE(hash_tokens(0, view.first(3)), hash_tokens(0, all));
}

// Written by qdelta 0.1 after "The river runs past the mill" and four more tokens.
TEST(StateFileV1, LoadsIntoItsModelAndNoOther) {
  const std::string folder = std::string(QDELTA_TESTS_DIR) + "/infer/fixtures/state_v1";
  const auto model = load_model(folder);
  ModelStates states(model->config(), 1);
  const SavedState info = load_state(folder + "/state", *model, states, 0);
  EXPECT_EQ(info.tokens, 32);
  EXPECT_EQ(info.token_hash, 5483659852355704406U);
  EXPECT_EQ(info.pending, 254);

  // Saved again it is a file of version 2 with the same state.
  const TemporaryFolder again;
  save_state(again.file("state"), *model, states, 0, info);
  const SafetensorsFile before = SafetensorsFile::open(folder + "/state");
  const SafetensorsFile after = SafetensorsFile::open(again.file("state"));
  EXPECT_EQ(after.metadata().at("version"), "2");
  EXPECT_EQ(after.metadata().count("model_hash"), 0U);
  ASSERT_EQ(before.names().size(), 4U);
  for (const std::string& name : before.names()) {
    const ConstTensorView a = before.view(name);
    const ConstTensorView b = after.view(name);
    ASSERT_EQ(a.shape, b.shape);
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(a.shape.elements()) * sizeof(float)), 0) << name;
  }
  EXPECT_EQ(load_state(again.file("state"), *model, states, 0).token_hash, info.token_hash);

  model->parameters()[3] += 1;
  expect_error(Status::invalid_argument, {"another model"},
               [&] { return load_state(folder + "/state", *model, states, 0); });
}

TEST_F(StateFile, DamageIsNamed) {
  const std::string good = read_file(path_);
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{100}, good.size() - 1}) {
    write_file(path_, good.substr(0, size));
    expect_error(Status::corrupt, {path_}, [&] { return load(*model_); });
  }
  expect_error(Status::io, {"nowhere"}, [&] {
    ModelStates states(model_->config(), 1);
    return load_state(folder_.file("nowhere"), *model_, states, 0);
  });
}

TEST_F(StateFile, AWrongBitAnywhereIsSeen) {
  const std::string good = read_file(path_);
  Random random(11);
  for (int i = 0; i < 300; ++i) {
    const auto bit = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(good.size()) * 8 - 1));
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    write_file(path_, bad);
    EXPECT_THROW(static_cast<void>(load(*model_)), Error) << "bit " << bit;
  }
}

TEST_F(StateFile, EveryPartIsChecked) {
  const SafetensorsFile file = SafetensorsFile::open(path_);
  const auto written = [&](const std::map<std::string, std::string>& metadata, const std::string& changed,
                           const ConstTensorView* tensor) {
    std::vector<NamedTensor> tensors;
    for (const std::string& name : file.names()) {
      if (name != changed) {
        tensors.push_back({name, file.view(name)});
      } else if (tensor != nullptr) {
        tensors.push_back({name, *tensor});
      }
    }
    write_safetensors(folder_.file("changed"), tensors, metadata);
  };
  const auto refused = [&](const std::vector<std::string>& pieces) {
    ModelStates states(model_->config(), 1);
    try {
      static_cast<void>(load_state(folder_.file("changed"), *model_, states, 0));
      ADD_FAILURE() << "loaded; expected " << pieces.front();
    } catch (const Error& error) {
      for (const std::string& piece : pieces) {
        EXPECT_NE(std::string(error.what()).find(piece), std::string::npos) << error.what();
      }
    }
  };
  for (const char* key : {"model_xxh3", "tokens", "token_xxh3", "pending"}) {
    auto metadata = file.metadata();
    metadata.erase(key);
    written(metadata, "", nullptr);
    refused({folder_.file("changed"), key});
    for (const char* bad : {"", "x", "1x", "99999999999999999999999"}) {
      metadata[key] = bad;
      written(metadata, "", nullptr);
      refused({folder_.file("changed"), key});
    }
  }
  for (const char* tokens : {"9223372036854775807", "9223372036854775808", "18446744073709551615"}) {
    auto metadata = file.metadata();
    metadata["tokens"] = tokens;
    written(metadata, "", nullptr);
    refused({folder_.file("changed"), tokens});
  }
  auto metadata = file.metadata();
  metadata["version"] = "3";
  written(metadata, "", nullptr);
  refused({"version 3", "1 to 2"});
  metadata["version"] = "2";
  metadata["pending"] = "259";
  written(metadata, "", nullptr);
  refused({"pending"});
  metadata["pending"] = "258";
  written(metadata, "", nullptr);
  ModelStates states(model_->config(), 1);
  EXPECT_EQ(load_state(folder_.file("changed"), *model_, states, 0).pending, 257);

  const Tensor odd(DType::f32, {1, 2, 3});
  for (const char* name : {"conv.1", "recurrent.0"}) {
    written(file.metadata(), name, nullptr);
    refused({name});
    const ConstTensorView view = odd.view();
    written(file.metadata(), name, &view);
    refused({name, "[1, 2, 3]"});
  }
}

}  // namespace
}  // namespace qdelta::testing
