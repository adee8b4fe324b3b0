#include "bench/serve_bench.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <thread>

#include "bench/word_tokenizer.h"
#include "core/error.h"
#include "core/random.h"
#include "serve/server.h"

namespace qdelta::bench {
namespace {

// A server in a thread, as long as this lives.
class Serving {
 public:
  Serving(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device,
          const serve::ServerOptions& options)
      : server_(model, tokenizer, device, options), thread_([this] { server_.serve(); }) {}
  ~Serving() {
    server_.stop(std::chrono::milliseconds(0));
    thread_.join();
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  [[nodiscard]] int port() const { return server_.port(); }

 private:
  serve::Server server_;
  std::thread thread_;
};

class Requests {
 public:
  explicit Requests(const ServeBenchOptions& options) : options_(options) {}

  std::string next() {
    if (!options_.replay.empty()) return options_.replay[count_++ % options_.replay.size()];
    const std::vector<std::int32_t> prompt = drawn(random_.integer(options_.prompt.low, options_.prompt.high));
    return body(prompt, random_.integer(options_.tokens.low, options_.tokens.high));
  }
  // For one token; the prompt begins with these.
  std::string behind(std::vector<std::int32_t> prefix) {
    const std::vector<std::int32_t> rest = drawn(kNewTokens);
    prefix.insert(prefix.end(), rest.begin(), rest.end());
    return body(prefix, 1);
  }
  std::vector<std::int32_t> drawn(std::int64_t length) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random_.integer(0, options_.model.vocab_size - 1)));
    }
    return tokens;
  }

 private:
  std::string body(const std::vector<std::int32_t>& prompt, std::int64_t tokens) {
    return nlohmann::json{{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", options_.temperature},
                          {"seed", count_++}, {"ignore_eos", true},   {"stream", true}}
        .dump();
  }

  const ServeBenchOptions& options_;
  Random random_{17};
  std::size_t count_ = 0;
};

void check(const ServeBenchOptions& options) {
  require(!options.clients.empty(), "there must be clients");
  for (const std::int64_t clients : options.clients) {
    require(clients >= 1 && clients <= 4096, "clients is {}, expected 1 to 4096", clients);
  }
  for (const Range& range : {options.prompt, options.tokens}) {
    require(range.low >= 1 && range.low <= range.high, "{}-{} is no range of tokens", range.low, range.high);
  }
  for (const std::int64_t tokens : options.prefixes) {
    require(tokens >= 1, "a prefix of {} tokens, expected at least 1", tokens);
  }
  require(options.seconds > 0 && options.warm_up >= 0, "seconds is {}, expected more than 0", options.seconds);
  require(options.rate >= 0, "rate is {}, expected 0 (none) or more", options.rate);
}

double mean(const Range& range) { return 0.5 * static_cast<double>(range.low + range.high); }

// With n sequences at once: each token takes its share of a step, and of reading its prompt.
double with_prompts(const ServeBenchOptions& options, const GenerateBenchReport& generate, double tokens_per_s) {
  if (!options.replay.empty()) return 0;
  return 1 / (1 / tokens_per_s + mean(options.prompt) / mean(options.tokens) / generate.prompts.front().tokens_per_s);
}

}  // namespace

std::string doubt_of_load(const LoadResult& load, const Timing& generate_step, std::int64_t clients) {
  std::vector<double> seconds_per_token;
  for (const std::int64_t tokens : load.tokens_of_part) {
    if (tokens == 0) return "in a part of its time no token came";
    seconds_per_token.push_back(load.seconds / static_cast<double>(kLoadParts) / static_cast<double>(tokens));
  }
  const Timing timing = timing_of(std::move(seconds_per_token));
  return doubt_of(timing, 1 / timing.median, limit_of(static_cast<double>(clients), generate_step));
}

ServeBenchReport run_serve_bench(const ServeBenchOptions& options, const ServeBenchProgress& progress) {
  check(options);
  ServeBenchReport report;
  const std::int64_t most = *std::max_element(options.clients.begin(), options.clients.end());
  {
    GenerateBenchOptions generate;
    generate.model = options.model;
    generate.batches = options.clients;
    generate.prompts = {options.prompt.high};
    generate.device = options.device;
    report.generate = run_generate_bench(generate, {});
  }
  LanguageModel model(options.model);
  initialise(model.layout(), 1, model.parameters());
  const WordTokenizer tokenizer(options.model.vocab_size);
  serve::ServerOptions server;
  server.port = 0;
  server.engine = {.max_batch = most, .max_queue = 4096};
  server.limits.max_tokens = std::max(server.limits.max_tokens, options.tokens.high);
  server.limits.max_prompt = std::max(server.limits.max_prompt, options.prompt.high);
  for (const std::int64_t tokens : options.prefixes) {
    server.limits.max_prompt = std::max(server.limits.max_prompt, tokens + kNewTokens);
  }
  server.max_memory = std::size_t{16} << 30U;
  const Serving serving(model, tokenizer, options.device, server);
  Requests requests(options);
  const auto measure_load = [&](std::int64_t clients, double rate, const GenerateBenchRow& generated) {
    Load load{.port = serving.port(),
              .clients = clients,
              .rate = rate,
              .warm_up = options.warm_up,
              .seconds = options.seconds,
              .next_request = [&] { return requests.next(); }};
    ServeBenchRow row{.clients = clients, .rate = rate, .load = drive(load)};
    row.tokens_per_s = static_cast<double>(row.load.tokens) / row.load.seconds;
    row.generate_tokens_per_s = generated.tokens_per_s;
    row.with_prompts_tokens_per_s = with_prompts(options, report.generate, generated.tokens_per_s);
    if (rate == 0) row.doubt = doubt_of_load(row.load, generated.timing, clients);
    progress.load(row);
    report.rows.push_back(std::move(row));
  };
  const auto first_tokens = [&](const std::function<std::string()>& next_request) {
    return drive(
        {.port = serving.port(), .warm_up = options.warm_up, .seconds = options.seconds, .next_request = next_request});
  };
  for (std::size_t i = 0; i < options.clients.size(); ++i) {
    measure_load(options.clients[i], 0, report.generate.rows[i]);
  }
  if (options.rate > 0) measure_load(4 * most, options.rate, report.generate.rows.back());
  for (const std::int64_t tokens : options.prefixes) {
    const std::vector<std::int32_t> prefix = requests.drawn(tokens);
    PrefixBenchRow row{.tokens = tokens};
    row.unlike = first_tokens([&] { return requests.behind(requests.drawn(tokens)); });
    row.cached = first_tokens([&] { return requests.behind(prefix); });
    progress.prefix(row);
    report.prefixes.push_back(std::move(row));
  }
  return report;
}

}  // namespace qdelta::bench
