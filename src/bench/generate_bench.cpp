#include "bench/generate_bench.h"

#include "bench/machine_limits.h"
#include "core/error.h"
#include "core/random.h"
#include "core/threads.h"
#include "data/byte_tokenizer.h"
#include "infer/generator.h"
#include "model/flops.h"

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

// Of a step, as `qdelta generate` decodes: greedily, every sequence to the end.
Timing decode_timing(Generator& generator, const GenerateBenchOptions& options, std::int64_t batch,
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
  return timing_of(std::move(times));
}

// `limit` was measured before; it becomes what is measured after.
PromptBenchRow read_prompt(Generator& reader, ModelStates& states, const GenerateBenchOptions& options,
                           const ParameterLayout& layout, std::int64_t tokens, Limit& limit) {
  PromptBenchRow row;
  row.tokens = tokens;
  const std::vector<std::int32_t> prompt = random_prompt(options.model.vocab_size, tokens);
  constexpr int kFewest = 3;  // a long prompt takes minutes
  row.timing = measure(
      [&] {
        states.clear(0);
        (void)reader.read(prompt, 0);
      },
      kFewest);
  const Limit after = matrix_rate(options.device);
  limit = larger(limit, after);
  row.tokens_per_s = static_cast<double>(tokens) / row.timing.median;
  const double head = head_training_flop_per_token(layout) / 3;
  row.rate = ((forward_flop_per_token(layout) - head) * static_cast<double>(tokens) + head) / row.timing.median;
  row.limit = limit.rate;
  row.doubt = doubt_of(row.timing, row.rate, limit);
  limit = after;
  return row;
}

void check(const GenerateBenchOptions& options) {
  require(!options.prompts.empty(), "a benchmark needs at least one prompt");
  for (const std::int64_t tokens : options.prompts) {
    require(tokens > 0, "a prompt needs at least one token, not {}", tokens);
  }
  require(!options.recent_tokens || options.device.gpu != nullptr,
          "recent tokens are kept beside states on a GPU only");
  require(options.tokens > 0, "a benchmark needs at least one token to decode, not {}", options.tokens);
  for (const std::int64_t batch : options.batches) {
    require(batch > 0, "a batch needs at least one sequence, not {}", batch);
  }
}

}  // namespace

GenerateBenchReport run_generate_bench(const GenerateBenchOptions& options, const GenerateBenchProgress& progress) {
  check(options);
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
  Generator reader(model, tokenizer, weights, read);
  Limit products = matrix_rate(options.device);
  for (const std::int64_t tokens : options.prompts) {
    report.prompts.push_back(read_prompt(reader, read, options, model.layout(), tokens, products));
    progress.prompt(report.prompts.back());
  }

  for (const std::int64_t batch : options.batches) {
    ModelStates states(options.model, batch, options.device);
    Generator generator(model, tokenizer, weights, states, {.recent_tokens = options.recent_tokens});
    GenerateBenchRow row;
    row.batch = batch;
    Limit limit = read_bandwidth(options.device, report.weight_bytes);
    row.timing = decode_timing(generator, options, batch, read, states);
    limit = larger(limit, read_bandwidth(options.device, report.weight_bytes));
    row.tokens_per_s = static_cast<double>(batch) / row.timing.median;
    row.rate = static_cast<double>(report.weight_bytes) / row.timing.median;
    row.limit = limit.rate;
    row.doubt = doubt_of(row.timing, row.rate, limit);
    report.rows.push_back(row);
    progress.decoding(report, row);
  }
  return report;
}

}  // namespace qdelta::bench
