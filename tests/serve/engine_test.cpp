// The engine by itself, without a network.
#include "serve/engine.h"

#include <gtest/gtest.h>

#include <future>

#include "infer/generating_case.h"

namespace qdelta::testing {
namespace {

// Tokens are passed on while the device works on the next step, not before it is launched: then a GPU would wait for
// the host each time. A CPU's step is done when its launch returns, so that a token which comes out before it finds a
// step fewer counted. Only the last one has no step behind it.
TEST(Engine, LaunchesTheNextStepBeforeTokensArePassedOn) {
  constexpr std::int64_t kTokens = 300;
  const auto model = speaking_model(speaking_config());
  const ByteTokenizer tokenizer;
  Device device;
  device.threads = 1;
  serve::Metrics metrics;
  serve::Engine engine(*model, tokenizer, device, {.max_batch = 1}, metrics);

  GenerationOptions options = greedy(kTokens);
  options.stop_at_eos = false;
  std::vector<serve::SequenceRequest> sequences(1);
  sequences[0].prompt = bytes_of("The river");
  sequences[0].options = options;
  const auto job = std::make_shared<serve::Job>(std::move(sequences));
  std::int64_t tokens = 0, early = 0;  // the thread that passes them on has these until the promise is kept
  std::promise<void> ended;
  job->on_news([&] {
    const std::uint64_t steps = metrics.decode_steps;
    bool last = false;
    for (const serve::Update& update : job->take()) {
      tokens += static_cast<std::int64_t>(update.generated.size());
      last = last || update.end != EndReason::none;
    }
    if (last) return ended.set_value();
    if (static_cast<std::int64_t>(steps) < tokens) ++early;
  });
  ASSERT_EQ(engine.submit(job), serve::Engine::Admission::accepted);
  ended.get_future().wait();
  EXPECT_EQ(job->failure(), "");
  EXPECT_EQ(tokens, kTokens);
  EXPECT_EQ(early, 0) << "tokens came out before the step behind them was launched";
}

}  // namespace
}  // namespace qdelta::testing
