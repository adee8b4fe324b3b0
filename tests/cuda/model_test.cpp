// The whole engine on the GPU, in float32 and bfloat16: recorded models, the CPU's results, training, generation.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cuda/device.h"
#include "infer/decode_step_case.h"
#include "infer/generating_case.h"
#include "kernels/device.h"
#include "mixers.h"
#include "model/golden_model.h"
#include "model/model_case.h"
#include "train/trainer.h"

namespace qdelta::testing {
namespace {

class ModelOnGpu : public OnGpu<::testing::Test> {};

struct LossAndGradients {
  double loss = 0;
  std::vector<float> gradients;
};

// `count` as for ModelRunner::loss_and_gradients; the gradients are left in `there`, on the device.
LossAndGradients gradients_of(ModelRunner& runner, const Device& device, DeviceBuffer& there, const ModelInput& input,
                              std::span<const std::int32_t> targets, std::int64_t count = 0) {
  LossAndGradients result;
  result.gradients.resize(there.size() / sizeof(float));
  clear(device, there.data(), there.size());
  result.loss = runner.loss_and_gradients(input, targets,
                                          {reinterpret_cast<float*>(there.data()), result.gradients.size()}, count);
  download(device, result.gradients.data(), there.data(), there.size());
  return result;
}
std::size_t gradient_bytes(const LanguageModel& model) {
  return static_cast<std::size_t>(model.layout().size) * sizeof(float);
}
LossAndGradients gradients_on(const Device& device, const LanguageModel& model, const ModelInput& input,
                              std::span<const std::int32_t> targets, Recompute recompute = Recompute::none,
                              std::int64_t count = 0) {
  DeviceBuffer there(device, gradient_bytes(model));
  ModelRunner runner(model, device, recompute);
  return gradients_of(runner, device, there, input, targets, count);
}

Tensor logits_on(const Device& device, const LanguageModel& model, const ModelInput& input) {
  Tensor logits(DType::f32, {static_cast<std::int64_t>(input.ids.size()), model.config().vocab_size});
  ModelRunner(model, device).logits(input, logits.view());
  return logits;
}

double distance(std::span<const float> got, std::span<const float> expected) {
  return relative_error(std::vector<double>(got.begin(), got.end()),
                        std::vector<double>(expected.begin(), expected.end()));
}

TEST_F(ModelOnGpu, GoldenModelsInFloat32) {
  for (const char* name : kGoldenModels) {
    const RecordedModel golden(name);
    EXPECT_LT(golden.logits_error(logits_on(device(DType::f32), *golden.model, golden.input())), 1e-4) << name;
    for (const Recompute recompute : {Recompute::none, Recompute::some, Recompute::all}) {
      const auto got = gradients_on(device(DType::f32), *golden.model, golden.input(), golden.targets, recompute);
      EXPECT_NEAR(got.loss, golden.loss(), 1e-5 * golden.loss()) << name;
      const auto [error, tensor] = golden.worst_gradient(got.gradients);
      EXPECT_LT(error, 1e-4) << tensor << " of " << name;
    }
  }
}

// Every product rounds its operands to eight bits: a percent of the logits, some of a gradient. Those of A_log and its
// like, a number for each head, are sums over all tokens that cancel, and lose another factor of two.
TEST_F(ModelOnGpu, GoldenModelsInBFloat16) {
  for (const char* name : kGoldenModels) {
    const RecordedModel golden(name);
    EXPECT_LT(golden.logits_error(logits_on(device(DType::bf16), *golden.model, golden.input())), 2e-2) << name;
    const auto got = gradients_on(device(DType::bf16), *golden.model, golden.input(), golden.targets);
    EXPECT_NEAR(got.loss, golden.loss(), 1e-3 * golden.loss()) << name;
    const auto [error, tensor] = golden.worst_gradient(got.gradients, 16);
    EXPECT_LT(error, 5e-2) << tensor << " of " << name;
    const auto [any_error, any_tensor] = golden.worst_gradient(got.gradients);
    EXPECT_LT(any_error, 1e-1) << any_tensor << " of " << name;
  }
}

TEST_F(ModelOnGpu, EveryMixerAndOptionAsOnTheCpu) {
  std::vector<ModelConfig> configs;
  for (const std::string& mixer : all_mixers()) configs.push_back(small_config(mixer));
  ModelConfig config = small_config(Rule::q_delta);
  config.use_gate = false;
  config.use_short_conv = false;
  configs.push_back(config);
  config = small_config(Rule::q_delta);
  config.num_v_heads = 4;
  config.expand_v = 1;
  config.tie_word_embeddings = true;
  config.allow_neg_eigval = true;
  configs.push_back(config);
  config = small_config(Rule::q_delta);
  config.fixed_lambda = 0.5;
  config.use_decay = false;
  config.use_mlp = false;
  configs.push_back(config);
  config = small_config("mamba");
  config.use_mlp = false;
  config.expand = 1.5;
  config.state_size = 5;
  config.dt_rank = 7;
  configs.push_back(config);
  for (const ModelConfig& each : configs) {
    SCOPED_TRACE(config_to_json(each).dump());
    LanguageModel model(each);
    // Values for which a gradient hangs on no single token: with others the last bit of a weight moves it by more than
    // is allowed here.
    initialise(model.layout(), 1, model.parameters());
    for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{9, 1, 70}, {65, 65}}) {
      const TokenCase batch(5, each.vocab_size, lengths);
      const auto expected = gradients_on({1}, model, batch.input(), batch.targets);
      const auto got = gradients_on(device(DType::f32), model, batch.input(), batch.targets);
      EXPECT_NEAR(got.loss, expected.loss, 1e-5 * expected.loss);
      EXPECT_LT(distance(got.gradients, expected.gradients), 1e-4);
      EXPECT_LT(distance(logits_on(device(DType::f32), model, batch.input()).as<float>(),
                         logits_on({1}, model, batch.input()).as<float>()),
                1e-4);
    }
  }
}

TEST_F(ModelOnGpu, AHundredRunsGiveTheSameBits) {
  for (const char* name : {"qdelta_tiny", "mamba_tiny"}) {
    const RecordedModel golden(name);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto first = gradients_on(device(dtype), *golden.model, golden.input(), golden.targets);
      for (int run = 1; run < 100; ++run) {
        const auto again = gradients_on(device(dtype), *golden.model, golden.input(), golden.targets);
        ASSERT_EQ(again.loss, first.loss);
        ASSERT_TRUE(again.gradients == first.gradients) << "run " << run << " of " << name;
      }
    }
  }
}

// The second call of a shape is captured as a graph, later ones replay it: with other tokens and targets, after another
// number of targets, other lengths and few targets in between, and with other memory for the gradients.
TEST_F(ModelOnGpu, RepeatedTrainingStepsHaveTheBitsOfFirstOnes) {
  struct Call {
    std::vector<std::int64_t> lengths;
    std::int64_t count;
    bool few = false;
    bool other_gradients = false;
  };
  const std::vector<std::int64_t> even{40, 40};
  const std::vector<std::int64_t> packed{9, 1, 60};
  const std::vector<std::int64_t> longer{150};
  const std::vector<Call> calls{
      {even, 100},  {even, 100},   {even, 100},  {even, 50}, {even, 50}, {even, 50, true}, {even, 50, false, true},
      {packed, 50}, {packed, 50},  {packed, 50}, {even, 50}, {even, 50}, {longer, 50},     {longer, 50},
      {even, 50},   {longer, 100},
  };
  struct Case {
    const char* mixer;
    DType dtype;
    Recompute recompute;
  };
  std::vector<Case> cases{{"q_delta", DType::bf16, Recompute::none},
                          {"q_delta", DType::f32, Recompute::all},
                          {"mamba", DType::bf16, Recompute::some},
                          {"mamba", DType::f32, Recompute::none}};
  if (quick()) cases.resize(1);
  for (const Case& each : cases) {
    const Device device = this->device(each.dtype);
    LanguageModel model(small_config(each.mixer));
    initialise(model.layout(), 1, model.parameters());
    DeviceBuffer gradients[2] = {{device, gradient_bytes(model)}, {device, gradient_bytes(model)}};
    ModelRunner runner(model, device, each.recompute);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      SCOPED_TRACE(fmt::format("call {} of {} in {}", i, each.mixer, name_of(each.dtype)));
      const Call& call = calls[i];
      TokenCase batch(i, model.config().vocab_size, call.lengths);
      if (call.few) std::fill(batch.targets.begin() + 10, batch.targets.end(), -1);
      const auto got = gradients_of(runner, device, gradients[call.other_gradients ? 1 : 0], batch.input(),
                                    batch.targets, call.count);
      const auto expected = gradients_on(device, model, batch.input(), batch.targets, each.recompute, call.count);
      ASSERT_EQ(got.loss, expected.loss);
      ASSERT_EQ(std::memcmp(got.gradients.data(), expected.gradients.data(), gradient_bytes(model)), 0);
    }
  }
}

std::vector<double> training_losses(const Device& device, std::string_view mixer, int steps) {
  ModelConfig config = speaking_config(mixer);
  config.initializer_range = 0.02;  // as in training, where rounding does not grow
  LanguageModel model(config);
  initialise(model.layout(), 1, model.parameters());
  Trainer trainer(model, OptimizerOptions{}, device);
  const std::string text = "the quick brown fox jumps over the lazy dog and then sleeps until the evening comes ";
  const std::vector<std::int32_t> ids = bytes_of(text);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    TokenBatch batch;
    batch.offsets.push_back(0);
    for (std::size_t row = 0; row < 4; ++row) {
      for (std::size_t t = 0; t < 70; ++t) {
        const std::size_t at = 7 * static_cast<std::size_t>(step) + 13 * row + t;
        batch.ids.push_back(ids[at % ids.size()]);
        batch.targets.push_back(ids[(at + 1) % ids.size()]);
      }
      batch.offsets.push_back(static_cast<std::int64_t>(batch.ids.size()));
    }
    batch.loss_tokens = static_cast<std::int64_t>(batch.ids.size());
    losses.push_back(trainer.step(std::vector<TokenBatch>{batch}, 1e-3F).loss);
  }
  return losses;
}

TEST_F(ModelOnGpu, AHundredStepsOfTrainingAsOnTheCpu) {
  for (const char* mixer : {"q_delta", "mamba"}) {
    SCOPED_TRACE(mixer);
    const std::vector<double> expected = training_losses({1}, mixer, 100);
    const std::vector<double> exact = training_losses(device(DType::f32), mixer, 100);
    const std::vector<double> narrow = training_losses(device(DType::bf16), mixer, 100);
    EXPECT_LT(expected.back(), 0.9 * expected.front());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(exact[i], expected[i], 1e-4 * expected[i]) << "step " << i;
      EXPECT_NEAR(narrow[i], expected[i], 1e-2 * expected[i]) << "step " << i;
    }
  }
}

TEST_F(ModelOnGpu, GreedyTextIsThatOfTheCpuAloneAndInABatch) {
  const ByteTokenizer tokenizer;
  for (const char* mixer : {"q_delta", "linear", "mamba"}) {
    const auto model = speaking_model(speaking_config(mixer));
    const std::vector<std::vector<std::int32_t>> prompts{bytes_of("once upon a time"), bytes_of("a"), bytes_of("zoo")};
    const auto texts_on = [&](const Device& where, bool together) {
      ModelStates states(model->config(), 3, where);
      Generator generator(*model, tokenizer, states);
      std::vector<std::string> texts;
      if (together) {
        for (const Generated& each : generator.generate(prompts, greedy(40), {0, 1, 2})) {
          texts.push_back(each.text);
        }
        return texts;
      }
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        texts.push_back(generator.generate({prompts[i]}, greedy(40), {static_cast<std::int64_t>(i)})[0].text);
      }
      return texts;
    };
    const std::vector<std::string> expected = texts_on({1}, false);
    EXPECT_EQ(texts_on(device(DType::f32), false), expected);
    EXPECT_EQ(texts_on(device(DType::f32), true), expected);
  }
}

TEST_F(ModelOnGpu, SampledTextRepeatsWithItsSeed) {
  const ByteTokenizer tokenizer;
  const auto model = speaking_model(speaking_config());
  const auto text_of = [&](std::uint64_t seed) {
    ModelStates states(model->config(), 1, device(DType::bf16));
    Generator generator(*model, tokenizer, states);
    GenerationOptions options = greedy(60);
    options.sampling.temperature = 1;
    options.sampling.top_p = 0.9F;
    options.sampling.seed = seed;
    return generator.generate({bytes_of("once upon a time")}, options, {0})[0].text;
  };
  EXPECT_EQ(text_of(1), text_of(1));
  EXPECT_NE(text_of(1), text_of(2));
}

TEST_F(ModelOnGpu, DecodeStepsGiveEachSequenceWhatItGetsAlone) {
  for (const char* mixer : {"q_delta", "linear", "mamba"}) {
    SCOPED_TRACE(mixer);
    expect_steps_as_alone(device(DType::f32), mixer, 1e-5);
    expect_steps_as_alone(device(DType::bf16), mixer, 2e-2);
  }
}

TEST_F(ModelOnGpu, DecodeStepsHaveTheSameBitsInAnyCompany) {
  for (const char* mixer : {"q_delta", "linear", "mamba", "mamba2"}) {
    SCOPED_TRACE(mixer);
    expect_bits_as_alone(device(DType::f32), mixer);
    expect_bits_as_alone(device(DType::bf16), mixer);
  }
}

// With the last tokens beside the states, sequences say the same, and what they leave behind is the same state.
TEST_F(ModelOnGpu, RecentTokensGoIntoTheStates) {
  const ByteTokenizer tokenizer;
  const auto model = speaking_model(speaking_config());
  const Device gpu = device(DType::f32);
  const auto weights = std::make_shared<DeviceWeights>(*model, gpu);
  const auto run = [&](bool recent_tokens) {
    auto out = std::make_unique<ModelStates>(model->config(), 2, gpu);
    Generator generator(*model, tokenizer, weights, *out, {.recent_tokens = recent_tokens});
    std::vector<std::string> texts;
    for (const int tokens : {40, 3, 1}) {  // goes on from what it left
      for (const Generated& each : generator.generate({bytes_of("once"), bytes_of("upon")}, greedy(tokens), {0, 1})) {
        texts.push_back(each.text);
      }
    }
    return std::pair(std::move(out), std::move(texts));
  };
  const auto [plain, plain_texts] = run(false);
  const auto [kept, kept_texts] = run(true);
  EXPECT_EQ(kept_texts, plain_texts);
  for (std::size_t i = 0; i < plain->pools().size(); ++i) {
    const auto host = [&](const ModelStates& states) {
      const ConstTensorView from = states.pools()[i].tensor.view();
      Tensor out(DType::f32, from.shape);
      download(gpu, out.data(), from.data, out.bytes());
      return out;
    };
    EXPECT_LE(relative_error(host(*kept).view(), to_doubles(host(*plain).view())), 1e-5) << plain->pools()[i].name;
  }
}

TEST_F(ModelOnGpu, RecentTokensCanBeTakenBack) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    expect_tokens_taken_back(device(dtype), speaking_config());
    ModelConfig config = speaking_config();
    config.use_short_conv = false;
    expect_tokens_taken_back(device(dtype), config);
  }
}

// A sequence has its random numbers, whether those before it go on or end at once.
TEST_F(ModelOnGpu, SampledTextDoesNotDependOnTheOthers) {
  const ByteTokenizer tokenizer;
  const auto model = speaking_model(speaking_config());
  const auto texts = [&](const std::vector<std::string>& stop) {
    ModelStates states(model->config(), 2, device(DType::bf16));
    Generator generator(*model, tokenizer, states);
    GenerationOptions options = greedy(60);
    options.sampling.temperature = 1;
    options.sampling.seed = 5;
    options.stop = stop;
    std::vector<std::string> out;
    for (const Generated& each : generator.generate({bytes_of("once"), bytes_of("upon")}, options, {0, 1})) {
      out.push_back(each.text);
    }
    return out;
  };
  const std::vector<std::string> both = texts({});
  const std::string end = both[0].substr(0, 1);
  EXPECT_EQ(texts({end}), (std::vector<std::string>{"", both[1].substr(0, both[1].find(end))}));
}

// The prompt is read well, its first token is not: the card, not the host, meets the NaN.
TEST_F(ModelOnGpu, GenerationRefusesWhatIsNoNumber) {
  const ByteTokenizer tokenizer;
  const auto model = speaking_model(speaking_config());
  const std::vector<std::int32_t> prompt = bytes_of("ZYX");
  const auto generate = [&](std::int64_t tokens) {
    ModelStates states(model->config(), 1, device(DType::bf16));
    Generator generator(*model, tokenizer, states);
    return generator.generate({prompt}, greedy(tokens), {0})[0];
  };
  const std::int32_t first = generate(1).tokens[0];
  model->parameters()[static_cast<std::size_t>(model->layout().embeddings.offset +
                                               first * model->config().hidden_size)] = NAN;
  EXPECT_EQ(generate(1).tokens[0], first);
  expect_error(Status::corrupt, {"no number", "not finite"}, [&] { return generate(5); });
}

}  // namespace
}  // namespace qdelta::testing
