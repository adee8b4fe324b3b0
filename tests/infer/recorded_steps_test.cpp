#include "infer/stepping_case.h"

namespace qdelta::testing {
namespace {

TEST(RecordedSteps, GiveEachSequenceWhatItGetsAlone) {
  for (const char* mixer : {"q_delta", "linear", "mamba"}) {
    SCOPED_TRACE(mixer);
    expect_steps_as_alone({1}, mixer, 1e-6);
  }
}

TEST(RecordedSteps, RefuseWhatDoesNotMatch) {
  const auto model = speaking_model(speaking_config());
  ModelStates states(model->config(), 2, {1});
  RecordedSteps steps(*model, std::make_shared<DeviceWeights>(*model, Device{1}), {1}, states, 2);
  std::vector<float> logits(static_cast<std::size_t>(model->config().vocab_size));
  expect_error(Status::invalid_argument, {"2 tokens for 1 sequences"}, [&] {
    steps.next(std::vector<std::int32_t>{1, 2}, std::vector<std::int64_t>{0}, logits);
    return 0;
  });
}

}  // namespace
}  // namespace qdelta::testing
