// The model as a whole: the published checkpoints, gradients, memory plans, states.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <map>

#include "mixers.h"
#include "model/config_keys.h"
#include "model/golden_model.h"
#include "model/model_case.h"

namespace qdelta {
namespace {

using testing::small_config;
using testing::TokenCase;
namespace fs = std::filesystem;

class GoldenModel : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenModel, LogitsLossAndEveryGradientAgree) {
  const testing::RecordedModel golden(GetParam());
  for (const Recompute recompute : {Recompute::none, Recompute::some, Recompute::all}) {
    ModelRunner runner(*golden.model, {2}, recompute);
    Tensor logits(DType::f32, {static_cast<std::int64_t>(golden.ids.size()), golden.model->config().vocab_size});
    runner.logits(golden.input(), logits.view());
    EXPECT_LT(golden.logits_error(logits), 1e-4);
    std::vector<float> gradients(static_cast<std::size_t>(golden.model->layout().size));
    EXPECT_NEAR(runner.loss_and_gradients(golden.input(), golden.targets, gradients), golden.loss(),
                1e-5 * golden.loss());
    const auto [error, tensor] = golden.worst_gradient(gradients);
    EXPECT_LT(error, 1e-4) << tensor;
  }
}

INSTANTIATE_TEST_SUITE_P(Published, GoldenModel, ::testing::ValuesIn(testing::kGoldenModels));

// Equal seeds give equal tensors whatever else a rule has, and neighbouring seeds have nothing in common.
TEST(InitialValues, ByNameAndSeed) {
  const auto tensors = [](Rule rule, std::uint64_t seed) {
    const ParameterLayout layout(small_config(rule));
    std::vector<float> values(static_cast<std::size_t>(layout.size));
    initialise(layout, seed, values);
    std::map<std::string, std::vector<float>> found;
    for (const NamedSlot& tensor : layout.tensors) {
      const float* begin = values.data() + tensor.slot.offset;
      found[tensor.name].assign(begin, begin + tensor.slot.shape.elements());
    }
    return found;
  };
  const auto q_delta = tensors(Rule::q_delta, 1);
  const auto gated = tensors(Rule::gated_delta, 1);
  EXPECT_GT(q_delta.size(), gated.size());
  for (const auto& [name, values] : gated) EXPECT_EQ(q_delta.at(name), values) << name;
  const std::vector<float>& first = q_delta.at("lm_head.weight");
  for (const std::uint64_t seed : {2, 3, 4}) {
    const auto other_seed = tensors(Rule::q_delta, seed);
    const std::vector<float>& other = other_seed.at("lm_head.weight");
    for (std::size_t shift = 0; shift < 4; ++shift) {
      double product = 0;
      double square = 0;
      for (std::size_t i = shift; i < first.size(); ++i) {
        product += double{first[i]} * double{other[i - shift]};
        square += double{first[i]} * double{first[i]};
      }
      EXPECT_LT(std::abs(product / square), 0.15) << "seed " << seed << ", " << shift << " places on";
    }
  }
}

// Along a random direction in all parameters, the loss changes as the gradients say.
void expect_gradients(const ModelConfig& config) {
  LanguageModel model(config);
  initialise(model.layout(), 3, model.parameters());
  const TokenCase batch(5, config.vocab_size, {9, 1, 70});
  ModelRunner runner(model, {2});
  std::vector<float> gradients(static_cast<std::size_t>(model.layout().size));
  runner.loss_and_gradients(batch.input(), batch.targets, gradients);
  const std::vector<float> start(model.parameters().begin(), model.parameters().end());
  Random random(17);
  for (const NamedSlot& tensor : model.layout().tensors) {
    const auto begin = static_cast<std::size_t>(tensor.slot.offset);
    const auto count = static_cast<std::size_t>(tensor.slot.shape.elements());
    std::vector<double> direction(count);
    double actual = 0;
    double size = 0;
    for (std::size_t i = 0; i < count; ++i) {
      direction[i] = double{random.normal()} / std::sqrt(static_cast<double>(count));
      actual += direction[i] * double{gradients[begin + i]};
      size += double{gradients[begin + i]} * double{gradients[begin + i]};
    }
    std::vector<float> losses(batch.ids.size());
    const auto loss_at = [&](double step) {
      for (std::size_t i = 0; i < count; ++i) {
        model.parameters()[begin + i] = start[begin + i] + static_cast<float>(step * direction[i]);
      }
      runner.losses(batch.input(), batch.targets, losses);
      double sum = 0;
      double counted = 0;
      for (std::size_t i = 0; i < losses.size(); ++i) {
        sum += double{losses[i]};
        counted += batch.targets[i] >= 0 ? 1 : 0;
      }
      return sum / counted;
    };
    // A large step is spoiled by curvature (the norm of a short q turns quickly), a small one by rounding of the
    // float32 losses: some step must agree to within what rounding allows it.
    const double tolerance = 1e-2 * std::sqrt(size / static_cast<double>(count));
    double closest = INFINITY;
    for (const double h : {2e-2, 5e-3, 1e-3}) {
      const double coarse = (loss_at(h) - loss_at(-h)) / (2 * h);
      const double fine = (loss_at(h / 2) - loss_at(-h / 2)) / h;
      const double excess = std::abs(actual - (4 * fine - coarse) / 3) - 5e-7 / h;
      closest = std::min(closest, excess);
    }
    loss_at(0);
    EXPECT_LT(closest, tolerance) << tensor.name << " of " << config.mixer_name() << ", gradient along it " << actual;
  }
}

class EveryMixer : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMixer, GradientsOfAllParametersAgreeWithDifferences) { expect_gradients(small_config(GetParam())); }

TEST_P(EveryMixer, StateCarriesAPrefixExactly) {
  const ModelConfig config = small_config(GetParam());
  LanguageModel model(config);
  initialise(model.layout(), 3, model.parameters());
  const TokenCase batch(6, config.vocab_size, {75});
  ModelRunner runner(model, {2});
  Tensor whole(DType::f32, {75, config.vocab_size});
  runner.logits(batch.input(), whole.view());
  // Slot 1 of a pool of three, in pieces: several tokens, one, several, then token by token.
  ModelStates states(config, 3);
  const std::vector<std::int64_t> slots{1};
  std::int64_t at = 0;
  std::vector<std::int64_t> pieces{40, 1, 20};
  while (at + 1 < 75) {
    const std::int64_t count = pieces.empty() ? 1 : pieces.front();
    if (!pieces.empty()) pieces.erase(pieces.begin());
    Tensor last(DType::f32, {1, config.vocab_size});
    const std::vector<std::int64_t> offsets{0, count};
    runner.last_logits(
        {std::span(batch.ids).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)), offsets},
        last.view(), {&states, slots});
    at += count;
    const auto expected = std::span<const float>(whole.as<float>())
                              .subspan(static_cast<std::size_t>((at - 1) * config.vocab_size),
                                       static_cast<std::size_t>(config.vocab_size));
    EXPECT_LT(testing::relative_error(std::vector<double>(last.as<float>().begin(), last.as<float>().end()),
                                      std::vector<double>(expected.begin(), expected.end())),
              1e-4)
        << "after " << at << " tokens";
  }
  // Its neighbours were left alone.
  for (const ModelStates::Pool& pool : states.pools()) {
    const auto* values = reinterpret_cast<const float*>(pool.tensor.view().data);
    const std::int64_t size = pool.tensor.shape().elements() / 3;
    for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(values[i], 0.0F);
    for (std::int64_t i = 2 * size; i < 3 * size; ++i) ASSERT_EQ(values[i], 0.0F);
  }
}

TEST_P(EveryMixer, ConfigAndCheckpointSurviveARoundTrip) {
  ModelConfig config = small_config(GetParam());
  config.use_mlp = GetParam() != "linear";
  LanguageModel model(config);
  initialise(model.layout(), 4, model.parameters());
  const std::string folder = ::testing::TempDir() + "qdelta_roundtrip_" + GetParam();
  save_model(folder, model);
  const auto loaded = load_model(folder);
  EXPECT_EQ(config_to_json(loaded->config()), config_to_json(config));
  EXPECT_TRUE(std::equal(model.parameters().begin(), model.parameters().end(), loaded->parameters().begin()));
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Mixers, EveryMixer, ::testing::ValuesIn(testing::all_mixers()), testing::mixer_test_name);

TEST(Model, GradientsOfEveryOptionAgreeWithDifferences) {
  ModelConfig config = small_config(Rule::q_delta);
  config.use_gate = false;
  expect_gradients(config);
  config = small_config(Rule::q_delta);
  config.use_short_conv = false;
  expect_gradients(config);
  config = small_config(Rule::q_delta);
  config.num_v_heads = 4;
  config.expand_v = 1;
  config.tie_word_embeddings = true;
  expect_gradients(config);
  config = small_config(Rule::q_delta);
  config.allow_neg_eigval = true;
  config.lamb_bias = 0.8;
  config.conv_size = 2;
  expect_gradients(config);
  config = small_config(Rule::q_delta);
  config.fixed_lambda = 0.5;
  config.use_decay = false;
  config.use_mlp = false;
  expect_gradients(config);
}

TEST_P(EveryMixer, ThreadsAndRecomputationDoNotChangeABit) {
  const ModelConfig config = small_config(GetParam());
  LanguageModel model(config);
  initialise(model.layout(), 3, model.parameters());
  const TokenCase batch(5, config.vocab_size, {300, 7, 150});
  const auto gradients_with = [&](int threads, Recompute recompute) {
    ModelRunner runner(model, {threads}, recompute);
    std::vector<float> gradients(static_cast<std::size_t>(model.layout().size));
    runner.loss_and_gradients(batch.input(), batch.targets, gradients);
    return gradients;
  };
  const std::vector<float> one = gradients_with(1, Recompute::none);
  EXPECT_EQ(gradients_with(2, Recompute::none), one);
  EXPECT_EQ(gradients_with(3, Recompute::none), one);
  EXPECT_EQ(gradients_with(2, Recompute::all), one);
  EXPECT_EQ(gradients_with(2, Recompute::some), one);
}

TEST(Model, PiecesOfABatchAddUp) {
  const ModelConfig config = small_config(Rule::gated_delta);
  LanguageModel model(config);
  initialise(model.layout(), 3, model.parameters());
  const TokenCase both(5, config.vocab_size, {30, 20});
  const auto counted = std::count_if(both.targets.begin(), both.targets.end(), [](auto t) { return t >= 0; });
  ModelRunner runner(model, {1});
  std::vector<float> whole(static_cast<std::size_t>(model.layout().size));
  std::vector<float> pieces(whole.size());
  const double loss = runner.loss_and_gradients(both.input(), both.targets, whole);
  const std::vector<std::int64_t> first{0, 30};
  const std::vector<std::int64_t> second{0, 20};
  const std::span<const std::int32_t> ids = both.ids;
  const std::span<const std::int32_t> targets = both.targets;
  const double sum = runner.loss_and_gradients({ids.first(30), first}, targets.first(30), pieces, counted) +
                     runner.loss_and_gradients({ids.last(20), second}, targets.last(20), pieces, counted);
  EXPECT_NEAR(sum, loss, 1e-6);
  EXPECT_LT(testing::relative_error(std::vector<double>(pieces.begin(), pieces.end()),
                                    std::vector<double>(whole.begin(), whole.end())),
            1e-5);
}

TEST(Model, PublishedSizesCountTheirParameters) {
  ModelConfig config;
  config.lamb_bias = 0.8;
  EXPECT_EQ(ParameterLayout(config).parameters(), 380'017'148);
  config.choose_mixer("gated_delta");
  EXPECT_EQ(ParameterLayout(config).parameters(), 379'888'124);
  config.choose_mixer("q_delta");
  config.hidden_size = 2048;
  config.head_dim = 256;
  EXPECT_EQ(ParameterLayout(config).parameters(), 1'387'606'780);
  config.choose_mixer("gated_delta");
  EXPECT_EQ(ParameterLayout(config).parameters(), 1'387'348'732);
}

TEST(Model, GradientsOfMambasOptionsAgreeWithDifferences) {
  ModelConfig config = small_config("mamba");
  config.use_mlp = false;
  config.tie_word_embeddings = true;
  config.expand = 1.5;
  config.state_size = 5;
  config.dt_rank = 7;
  config.conv_size = 3;
  expect_gradients(config);
}

// Beside the published models, at their width and depth.
TEST(Model, MambaHasAboutAsManyParametersAsTheOthers) {
  ModelConfig config;
  config.choose_mixer("mamba");
  // Per block: in_proj and out_proj, the convolution, x_proj, dt_proj, A_log and D; then the norms and the MLP.
  const std::int64_t mixer = 3 * 2048 * 1024 + 5 * 2048 + 96 * 2048 + 65 * 2048 + 17 * 2048;
  const std::int64_t block = mixer + 2 * 1024 + 3 * 1024 * 2816;
  EXPECT_EQ(ParameterLayout(config).parameters(), 21 * block + 2 * 32000 * 1024 + 1024);
  EXPECT_NEAR(static_cast<double>(ParameterLayout(config).parameters()), 380'017'148, 0.025 * 380'017'148);
}

TEST(Model, MambaStartsAsInThePaper) {
  LanguageModel model(small_config("mamba"));
  initialise(model.layout(), 3, model.parameters());
  const auto values = [&](const std::string& name) {
    for (const NamedSlot& tensor : model.layout().tensors) {
      if (tensor.name != "model.layers.1.mixer." + name) continue;
      return model.parameters().subspan(static_cast<std::size_t>(tensor.slot.offset),
                                        static_cast<std::size_t>(tensor.slot.shape.elements()));
    }
    throw std::out_of_range(name);
  };
  for (std::size_t i = 0; i < 48 * 16; ++i) {
    EXPECT_FLOAT_EQ(std::exp(values("A_log")[i]), static_cast<float>(i % 16 + 1));
  }
  for (const float value : values("D")) EXPECT_EQ(value, 1.0F);
  for (const float value : values("dt_proj.bias")) {
    const double dt = std::log1p(std::exp(double{value}));
    EXPECT_GT(dt, 0.00099);
    EXPECT_LT(dt, 0.1001);
  }
  for (const float value : values("dt_proj.weight")) EXPECT_LE(std::abs(value), 1 / std::sqrt(2.0F));  // dt_rank is 2
}

TEST(Checkpoint, MambaWithoutMlpHasThePublishedNames) {
  ModelConfig config = small_config("mamba");
  config.use_mlp = false;
  LanguageModel model(config);
  initialise(model.layout(), 4, model.parameters());
  const std::string folder = ::testing::TempDir() + "qdelta_published_mamba";
  save_model(folder, model);
  const SafetensorsFile file = SafetensorsFile::open(folder + "/model.safetensors");
  EXPECT_EQ(file.view("backbone.embeddings.weight").shape, Shape({31, 24}));
  EXPECT_EQ(file.view("backbone.layers.1.norm.weight").shape, Shape({24}));
  EXPECT_EQ(file.view("backbone.layers.1.mixer.in_proj.weight").shape, Shape({96, 24}));
  EXPECT_EQ(file.view("backbone.layers.1.mixer.conv1d.weight").shape, Shape({48, 1, 4}));
  EXPECT_EQ(file.view("backbone.layers.1.mixer.conv1d.bias").shape, Shape({48}));
  EXPECT_EQ(file.view("backbone.layers.1.mixer.x_proj.weight").shape, Shape({34, 48}));
  EXPECT_EQ(file.view("backbone.layers.1.mixer.dt_proj.weight").shape, Shape({48, 2}));
  EXPECT_EQ(file.view("backbone.layers.1.mixer.dt_proj.bias").shape, Shape({48}));
  EXPECT_EQ(file.view("backbone.layers.1.mixer.A_log").shape, Shape({48, 16}));
  EXPECT_EQ(file.view("backbone.layers.1.mixer.D").shape, Shape({48}));
  EXPECT_EQ(file.view("backbone.layers.1.mixer.out_proj.weight").shape, Shape({24, 48}));
  EXPECT_EQ(file.view("backbone.norm_f.weight").shape, Shape({24}));
  EXPECT_EQ(file.view("lm_head.weight").shape, Shape({31, 24}));
  EXPECT_EQ(file.names().size(), 3U + 2 * 10);
  const auto loaded = load_model(folder);
  EXPECT_EQ(config_to_json(loaded->config()).at("model_type"), "mamba");
  EXPECT_TRUE(std::equal(model.parameters().begin(), model.parameters().end(), loaded->parameters().begin()));
  fs::remove_all(folder);
}

TEST(Config, APublishedMambaIsRead) {
  const ModelConfig config = config_from_json(nlohmann::json::parse(
      R"({"model_type": "mamba", "vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16,
          "expand": 2, "conv_kernel": 4, "intermediate_size": 1536, "time_step_rank": 48, "layer_norm_epsilon": 1e-05,
          "use_bias": false, "use_conv_bias": true, "hidden_act": "silu"})"));
  EXPECT_EQ(config.mixer, "mamba");
  EXPECT_FALSE(config.use_mlp);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.inner_width(), 1536);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(ParameterLayout(config).parameters(), 129'135'360);  // as published: mamba-130m
}

TEST(Config, APublishedDeltaNetIsRead) {
  const nlohmann::json published = nlohmann::json::parse(
      R"({"model_type": "delta_net", "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 24, "num_heads": 16,
          "expand_k": 1, "expand_v": 1, "use_gate": false, "use_short_conv": true, "conv_size": 4, "use_beta": true,
          "use_output_norm": true, "qk_norm": "l2", "qk_activation": "silu", "hidden_ratio": 4, "attn": null,
          "intermediate_size": null, "hidden_act": "swish", "norm_eps": 1e-06, "tie_word_embeddings": false})");
  const ModelConfig config = config_from_json(published);
  EXPECT_EQ(config.mixer, "delta");
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.value_dim(), 128);
  EXPECT_FALSE(config.use_gate);
  EXPECT_EQ(ParameterLayout(config).parameters(), 1'365'677'056);
  nlohmann::json narrow = published;
  narrow["expand_k"] = 0.5;
  narrow["expand_v"] = 2;
  EXPECT_EQ(config_from_json(narrow).head_dim, 64);
  EXPECT_EQ(config_from_json(narrow).value_dim(), 256);
  const auto refused = [&](const char* key, const nlohmann::json& value, const char* piece) {
    nlohmann::json changed = published;
    changed[key] = value;
    try {
      (void)config_from_json(changed);
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(piece), std::string::npos) << error.what();
    }
  };
  refused("qk_norm", "sum", "qk_norm");
  refused("qk_activation", "elu", "qk_activation");
  refused("use_beta", false, "use_beta");
  refused("use_output_norm", false, "use_output_norm");
  refused("attn", {{"layers", {1}}}, "attn");
  // What older versions wrote as well.
  refused("use_rope", true, "use_rope");
  refused("norm_first", true, "norm_first");
  refused("share_conv_kernel", true, "share_conv_kernel");
  refused("use_elu", true, "use_elu");
  refused("clamp_min", -32, "clamp_min");
  refused("clamp_max", 32, "clamp_max");
  nlohmann::json older = published;
  older.update({{"use_rope", false}, {"norm_first", false}, {"share_conv_kernel", false}, {"chunk_size", 64}});
  older.update({{"clamp_min", nullptr}, {"clamp_max", nullptr}, {"use_elu", nullptr}});
  EXPECT_EQ(config_to_json(config_from_json(older)), config_to_json(config));
  EXPECT_TRUE(unknown_config_keys(older).empty());
  refused("num_heads", 0, "num_heads");
  refused("num_heads", 7, "7 heads");
  refused("expand_k", 1e300, "expand_k");
  // What the engine writes of it is read as the same model.
  EXPECT_EQ(config_to_json(config_from_json(nlohmann::json(config_to_json(config)))), config_to_json(config));
}

// Each layer has the tensors of its own mixer, and a part of the state of its own shape.
TEST(LayerTypes, EveryLayerIsWhatTheConfigSays) {
  const ModelConfig config = small_config(testing::kHybrid);
  const ParameterLayout layout(config);
  const auto has = [&](const std::string& name) {
    return std::any_of(layout.tensors.begin(), layout.tensors.end(),
                       [&](const NamedSlot& tensor) { return tensor.name == name; });
  };
  EXPECT_TRUE(has("model.layers.0.attn.lamb_proj.weight"));
  EXPECT_FALSE(has("model.layers.0.mixer.in_proj.weight"));
  EXPECT_TRUE(has("model.layers.1.mixer.in_proj.weight"));
  EXPECT_FALSE(has("model.layers.1.attn.q_proj.weight"));
  EXPECT_TRUE(has("model.layers.2.attn.q_proj.weight"));
  EXPECT_FALSE(has("model.layers.2.attn.lamb_proj.weight"));
  const ModelStates states(config, 4);
  const std::vector<std::pair<std::string, Shape>> expected{{"conv.0", {4, 3, 64}}, {"recurrent.0", {4, 2, 8, 16}},
                                                            {"conv.1", {4, 3, 48}}, {"recurrent.1", {4, 16, 48}},
                                                            {"conv.2", {4, 3, 64}}, {"recurrent.2", {4, 2, 8, 16}}};
  ASSERT_EQ(states.pools().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(states.pools()[i].name, expected[i].first);
    EXPECT_EQ(states.pools()[i].tensor.shape(), expected[i].second) << expected[i].first;
  }
  EXPECT_EQ(states.layer(1).size(), 2U);
  EXPECT_EQ(states.layer(1)[1].data, states.pools()[3].tensor.view().data);
}

TEST(LayerTypes, APatternIsRepeatedOverTheLayers) {
  ModelConfig config = small_config(Rule::q_delta);
  config.num_hidden_layers = 5;
  config.choose_mixer("gated_delta,gated_delta,mamba");
  EXPECT_EQ(config.layer_types,
            (std::vector<std::string>{"gated_delta", "gated_delta", "mamba", "gated_delta", "gated_delta"}));
  EXPECT_EQ(config.mixer_name(), "gated_delta,gated_delta,mamba");
  EXPECT_EQ(config.mixer_title(), "Gated DeltaNet + Mamba");
  EXPECT_FALSE(config.has_lambda());
  EXPECT_EQ(config_to_json(config_from_json(config_to_json(config))).at("layer_types"), config.layer_types);
  // Layers that are all alike are said as ever.
  config.choose_mixer("mamba,mamba");
  EXPECT_TRUE(config.layer_types.empty());
  EXPECT_EQ(config.mixer_name(), "mamba");
  EXPECT_FALSE(config_to_json(config).contains("layer_types"));
  EXPECT_THROW(config.choose_mixer("q_delta,,mamba"), Error);
  EXPECT_THROW(config.choose_mixer("q_delta,mamba,q_delta,mamba,q_delta,mamba"), Error);
}

TEST(LayerTypes, NonsenseIsNamed) {
  const auto message_of = [](const nlohmann::json& types, const char* key = "bos_token_id",
                             const nlohmann::json& value = 1) -> std::string {
    nlohmann::json json = nlohmann::json::parse(config_to_json(small_config(Rule::q_delta)).dump());
    json["layer_types"] = types;
    json[key] = value;
    try {
      (void)config_from_json(json);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message_of({"q_delta", "mamba"}), "");
  EXPECT_EQ(message_of(nullptr), "");
  EXPECT_EQ(message_of(nullptr, "rule", "mamba"), "");
  EXPECT_NE(message_of({"q_delta"}).find("1 layers, but num_hidden_layers is 2"), std::string::npos);
  EXPECT_NE(message_of(nlohmann::json::array()).find("0 layers"), std::string::npos);
  EXPECT_NE(message_of({"q_delta", "attention"}).find("\"attention\"; there are"), std::string::npos);
  EXPECT_NE(message_of({"q_delta", 3}).find("layer_types' holds 3"), std::string::npos);
  EXPECT_NE(message_of("q_delta").find("layer_types' is \"q_delta\""), std::string::npos);
  EXPECT_NE(message_of({"q_delta", "mamba"}, "rule", "mamba").find("exclude each other"), std::string::npos);
  // What one layer's mixer cannot do, the model cannot.
  EXPECT_NE(message_of({"q_delta", "mamba"}, "use_gate", false).find("use_gate"), std::string::npos);
  EXPECT_NE(message_of({"q_delta", "mamba2"}, "use_decay", false).find("mamba2 needs its decay"), std::string::npos);
  EXPECT_EQ(message_of({"q_delta", "gated_delta"}, "use_gate", false), "");
}

TEST(Checkpoint, EveryProblemIsNamedInOneError) {
  const std::string folder = ::testing::TempDir() + "qdelta_bad_checkpoint";
  LanguageModel model(small_config(Rule::q_delta));
  save_model(folder, model);
  // One tensor missing, one of another shape, one too many.
  std::vector<NamedTensor> tensors;
  Tensor odd(DType::f32, {3, 5});
  for (const NamedSlot& tensor : model.layout().tensors) {
    if (tensor.name == "model.layers.1.attn.A_log") continue;
    const bool misshapen = tensor.name == "model.layers.0.attn.q_proj.weight";
    tensors.push_back(
        {tensor.name, misshapen ? ConstTensorView(odd.view()) : tensor.slot.in(std::as_const(model).parameters())});
  }
  tensors.push_back({"model.layers.0.attn.extra", odd.view()});
  write_safetensors(folder + "/model.safetensors", tensors);
  try {
    (void)load_model(folder);
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::corrupt);
    const std::string message = error.what();
    EXPECT_NE(message.find("model.layers.1.attn.A_log"), std::string::npos) << message;
    EXPECT_NE(message.find("model.layers.0.attn.q_proj.weight: [3, 5]"), std::string::npos) << message;
    EXPECT_NE(message.find("model.layers.0.attn.extra"), std::string::npos) << message;
  }
  fs::remove_all(folder);
}

TEST(Config, NonsenseIsRefusedByName) {
  const auto message_of = [](const char* key, const nlohmann::json& value) -> std::string {
    nlohmann::json json = nlohmann::json::parse(config_to_json(small_config(Rule::q_delta)).dump());
    json[key] = value;
    try {
      (void)config_from_json(json);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message_of("hidden_size", -1).find("hidden_size"), std::string::npos);
  EXPECT_NE(message_of("hidden_size", "wide").find("hidden_size"), std::string::npos);
  EXPECT_NE(message_of("num_v_heads", 3).find("num_v_heads"), std::string::npos);
  EXPECT_NE(message_of("expand_v", 1.3).find("expand_v"), std::string::npos);
  EXPECT_NE(message_of("model_type", "llama").find("llama"), std::string::npos);
  EXPECT_NE(message_of("rule", "nonsense").find("nonsense"), std::string::npos);
  EXPECT_NE(message_of("hidden_act", "gelu").find("gelu"), std::string::npos);
  EXPECT_NE(message_of("norm_eps", 0.0).find("norm_eps"), std::string::npos);
  EXPECT_EQ(message_of("unknown_key", 1), "");
  const auto mamba_message_of = [](const char* key, const nlohmann::json& value) -> std::string {
    nlohmann::json json = nlohmann::json::parse(config_to_json(small_config("mamba")).dump());
    json[key] = value;
    try {
      (void)config_from_json(json);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(mamba_message_of("time_step_rank", "auto"), "");
  EXPECT_NE(mamba_message_of("time_step_rank", "wide").find("time_step_rank"), std::string::npos);
  EXPECT_NE(mamba_message_of("time_step_rank", -1).find("time_step_rank"), std::string::npos);
  EXPECT_NE(mamba_message_of("state_size", 65).find("state_size"), std::string::npos);
  EXPECT_NE(mamba_message_of("expand", 1.3).find("expand"), std::string::npos);
  EXPECT_NE(mamba_message_of("use_gate", false).find("use_gate"), std::string::npos);
  EXPECT_EQ(mamba_message_of("lamb_bias", 0.8), "");  // one file serves all mixers
}

}  // namespace
}  // namespace qdelta
