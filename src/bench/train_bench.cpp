#include "bench/train_bench.h"

#include <chrono>

#include "bench/machine_limits.h"
#include "core/error.h"
#include "core/random.h"
#include "core/threads.h"
#include "kernels/peak_memory.h"
#include "model/flops.h"
#include "train/trainer.h"

namespace qdelta::bench {
namespace {

// Small, so that the weights stay what random ones are, however many steps are timed.
constexpr float kLearningRate = 1e-5F;

TokenBatch random_batch(std::int64_t vocabulary, std::int64_t sequences, std::int64_t tokens) {
  Random random(11);
  TokenBatch batch;
  batch.offsets.push_back(0);
  for (std::int64_t n = 0; n < sequences; ++n) {
    auto next = static_cast<std::int32_t>(random.integer(0, vocabulary - 1));
    for (std::int64_t t = 0; t < tokens; ++t) {
      batch.ids.push_back(next);
      next = static_cast<std::int32_t>(random.integer(0, vocabulary - 1));
      batch.targets.push_back(next);
    }
    batch.offsets.push_back((n + 1) * tokens);
  }
  batch.loss_tokens = sequences * tokens;
  return batch;
}

}  // namespace

TrainBenchReport run_train_bench(const TrainBenchOptions& options,
                                 const std::function<void(const TrainBenchRow&)>& progress) {
  require(options.tokens > 0, "a sequence needs at least one token, not {}", options.tokens);
  require(options.steps > 0, "a benchmark needs at least one step, not {}", options.steps);
  for (const std::int64_t batch : options.batches) {
    require(batch > 0, "a batch needs at least one sequence, not {}", batch);
  }
  LanguageModel model(options.model);
  initialise(model.layout(), 1, model.parameters());
  WorkTimes times(options.device);
  Trainer trainer(model, OptimizerOptions{}, options.device, options.recompute);

  TrainBenchReport report;
  report.threads = thread_count(options.device.threads);
  report.parameters = model.layout().parameters();
  report.flop_per_token = training_flop_per_token(model.layout());
  for (const std::int64_t batch : options.batches) {
    const std::vector<TokenBatch> micro_batches{random_batch(options.model.vocab_size, batch, options.tokens)};
    TrainBenchRow row;
    row.batch = batch;
    row.tokens = options.tokens;
    Limit limit = matrix_rate(options.device);
    const auto step = [&] {
      const StepResult result = trainer.step(micro_batches, kLearningRate);
      if (result.skipped) fail(Status::internal, "the gradients of a random model are not finite");
    };
    row.timing = measure(step, options.steps, 0);
    times.start();
    const auto begin = std::chrono::steady_clock::now();
    step();
    row.timed_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    row.work = times.stop();
    row.peak_memory = peak_memory(options.device);
    limit = larger(limit, matrix_rate(options.device));
    row.tokens_per_s = static_cast<double>(batch * options.tokens) / row.timing.median;
    row.rate = row.tokens_per_s * report.flop_per_token;
    row.limit = limit.rate;
    row.doubt = doubt_of(row.timing, row.rate, limit);
    report.rows.push_back(row);
    progress(row);
  }
  return report;
}

}  // namespace qdelta::bench
