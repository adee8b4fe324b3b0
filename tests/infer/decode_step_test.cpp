#include "infer/decode_step_case.h"
#include "mixers.h"

namespace qdelta::testing {
namespace {

TEST(DecodeStep, GivesEachSequenceWhatItGetsAlone) {
  for (const char* mixer : {"q_delta", "linear", "mamba"}) {
    SCOPED_TRACE(mixer);
    expect_steps_as_alone({1}, mixer, 1e-6);
  }
}

TEST(DecodeStep, HasTheSameBitsInAnyCompany) {
  for (const std::string& mixer : all_mixers()) {
    SCOPED_TRACE(mixer);
    expect_bits_as_alone({2}, mixer);
  }
}

TEST(DecodeStep, RefusesWhatDoesNotMatch) {
  const auto model = speaking_model(speaking_config());
  ModelStates states(model->config(), 2, {1});
  Sampler sampler({1}, 2, model->config().vocab_size);
  DecodeStep step(*model, std::make_shared<DeviceWeights>(*model, Device{1}), states, sampler, 2);
  const auto expect = [&](const std::string& words, std::vector<std::int64_t> slots, std::vector<std::int32_t> tokens) {
    expect_error(Status::invalid_argument, {words}, [&] {
      step.run(slots, tokens);
      return 0;
    });
  };
  expect("2 tokens for 1 sequences", {0}, {1, 2});
  expect("3 tokens for 3 sequences of at most 2", {0, 1, 0}, {1, 2, 3});
}

}  // namespace
}  // namespace qdelta::testing
