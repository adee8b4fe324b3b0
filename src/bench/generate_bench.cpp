#include "bench/generate_bench.h"

#include <algorithm>

#include "bench/machine_limits.h"
#include "core/error.h"
#include "core/random.h"
#include "core/threads.h"
#include "data/byte_tokenizer.h"
#include "infer/generator.h"

namespace qdelta::bench {
namespace {

constexpr int kTimings = 5;  // after one that does not count

std::vector<std::int32_t> random_prompt(std::int64_t vocabulary, std::int64_t tokens) {
  Random random(13);
  std::vector<std::int32_t> prompt;
  for (std::int64_t t = 0; t < tokens; ++t) {
    prompt.push_back(static_cast<std::int32_t>(random.integer(0, vocabulary - 1)));
  }
  return prompt;
}

// Seconds per step, as `qdelta generate` decodes: greedily, every sequence to the end.
double decode_seconds(Generator& generator, const GenerateBenchOptions& options, std::int64_t batch,
                      const ModelStates& read, ModelStates& states) {
  std::vector<std::int64_t> slots;
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int64_t n = 0; n < batch; ++n) {
    states.copy(read, 0, n);
    slots.push_back(n);
    prompts.push_back(random_prompt(options.model.vocab_size, 1));
  }
  GenerationOptions generation;
  generation.sampling.temperature = 0;
  generation.stop_at_eos = false;
  generation.max_tokens = options.tokens + 1;  // the first one comes of reading the prompt
  std::vector<double> times;
  for (int i = 0; i <= kTimings; ++i) {
    const double before = generator.speed().decode_seconds;
    (void)generator.generate(prompts, generation, slots);
    if (i > 0) times.push_back((generator.speed().decode_seconds - before) / static_cast<double>(options.tokens));
  }
  std::nth_element(times.begin(), times.begin() + kTimings / 2, times.end());
  return times[kTimings / 2];
}

}  // namespace

GenerateBenchReport run_generate_bench(
    const GenerateBenchOptions& options,
    const std::function<void(const GenerateBenchReport&, const GenerateBenchRow&)>& progress) {
  require(options.prompt > 0, "a prompt needs at least one token, not {}", options.prompt);
  require(options.tokens > 0, "a benchmark needs at least one token to decode, not {}", options.tokens);
  for (const std::int64_t batch : options.batches) {
    require(batch > 0, "a batch needs at least one sequence, not {}", batch);
  }
  LanguageModel model(options.model);
  initialise(model.layout(), 1, model.parameters());
  const ByteTokenizer tokenizer;  // ids above its own have no text, which is all the same here
  const auto weights = std::make_shared<DeviceWeights>(model, options.device);

  GenerateBenchReport report;
  report.threads = thread_count(options.device.threads);
  report.parameters = model.layout().parameters();
  const std::int64_t looked_up = options.model.tie_word_embeddings ? 0 : model.layout().embeddings.shape.elements();
  report.weight_bytes = static_cast<std::size_t>(report.parameters - looked_up) * size_of(options.device.activations);

  ModelStates read(options.model, 1, options.device);
  report.state_bytes = read.bytes();
  const std::vector<std::int32_t> prompt = random_prompt(options.model.vocab_size, options.prompt);
  Generator reader(model, tokenizer, weights, read);
  const double prefill = median_seconds([&] {
    read.clear(0);
    (void)reader.read(prompt, 0);
  });
  report.prefill_tokens_per_s = static_cast<double>(options.prompt) / prefill;

  for (const std::int64_t batch : options.batches) {
    ModelStates states(options.model, batch, options.device);
    Generator generator(model, tokenizer, weights, states);
    GenerateBenchRow row;
    row.batch = batch;
    row.limit = read_bandwidth(options.device, report.weight_bytes);
    row.seconds = decode_seconds(generator, options, batch, read, states);
    row.limit = std::max(row.limit, read_bandwidth(options.device, report.weight_bytes));
    row.tokens_per_s = static_cast<double>(batch) / row.seconds;
    row.rate = static_cast<double>(report.weight_bytes) / row.seconds;
    report.rows.push_back(row);
    progress(report, row);
  }
  return report;
}

}  // namespace qdelta::bench
