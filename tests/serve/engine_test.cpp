// The engine by itself, without a network.
#include "serve/engine.h"

#include <gtest/gtest.h>

#include <future>

#include "infer/generating_case.h"

namespace qdelta::testing {
namespace {

constexpr std::int64_t kTokens = 300;

// Tokens of an engine that has one sequence, and before how many steps each came out. They are told in the engine's own
// threads.
struct Heard {
  std::int64_t tokens = 0, early = 0;
  std::uint64_t steps_before_first = 0;
};

Heard heard_from_engine() {
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
  Heard heard;  // whoever tells has it until the promise is kept
  std::promise<void> ended;
  job->on_news([&] {
    const std::uint64_t steps = metrics.decode_steps;
    if (heard.tokens == 0) heard.steps_before_first = steps;
    const bool first = heard.tokens == 0;
    bool last = false;
    for (const serve::Update& update : job->take()) {
      heard.tokens += static_cast<std::int64_t>(update.generated.size());
      last = last || update.end != EndReason::none;
    }
    if (last) return ended.set_value();
    if (!first && static_cast<std::int64_t>(steps) < heard.tokens) ++heard.early;
  });
  EXPECT_EQ(engine.submit(job), serve::Engine::Admission::accepted);
  ended.get_future().wait();
  EXPECT_EQ(job->failure(), "");
  EXPECT_EQ(heard.tokens, kTokens);
  return heard;
}

// Tokens are passed on while the device works on the next step, not before it is launched: then a GPU would wait for
// the host each time. A CPU's step is done when its launch returns, so that a token which comes out before it finds a
// step fewer counted. Only the last one has no step behind it.
TEST(Engine, LaunchesTheNextStepBeforeTokensArePassedOn) {
  EXPECT_EQ(heard_from_engine().early, 0) << "tokens came out before the step behind them was launched";
}

// All but the token behind the prompt, for which somebody waits.
TEST(Engine, PassesTheFirstTokenOnBeforeAnyStep) { EXPECT_EQ(heard_from_engine().steps_before_first, 0U); }

}  // namespace
}  // namespace qdelta::testing
