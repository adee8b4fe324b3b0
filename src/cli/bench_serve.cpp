// qdelta bench serve: tokens per second and latencies of a model behind HTTP.
#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <sstream>
#include <utility>

#include "bench/serve_bench.h"
#include "cli/bench_common.h"
#include "cli/device_flags.h"
#include "io/parse_json.h"
#include "io/regular_file.h"
#include "model/parameters.h"
#include "plot/figure.h"

namespace qdelta {
namespace {

struct ServeBenchFlags {
  ModelFlags model;
  DeviceFlags device;
  bench::ServeBenchOptions options;
  std::string prompt = "200", tokens = "128", replay, svg;
  ReportFlags report;
};

// "200", or "50-400".
bench::Range range_of(const char* flag, const std::string& text) {
  bench::Range range;
  const std::size_t dash = text.find('-');
  const bool good = CLI::detail::lexical_cast(text.substr(0, dash), range.low) &&
                    (dash == std::string::npos || CLI::detail::lexical_cast(text.substr(dash + 1), range.high));
  require(good, "{} is '{}', expected a number of tokens or two with a dash between them", flag, text);
  if (dash == std::string::npos) range.high = range.low;
  return range;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream file(read_text_file(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    nlohmann::json body = parse_json(line, fmt::format("{}, line {}", path, lines.size() + 1));
    require(body.is_object() && body.contains("prompt"),
            "{}, line {}: expected the body of a completion, with a prompt", path, lines.size() + 1);
    body["stream"] = true;
    lines.push_back(body.dump());
  }
  require(!lines.empty(), "{} has no requests", path);
  return lines;
}

void print_serve_header() {
  fmt::print("{:>9} {:>10} {:>10} {:>7} {:>13} {:>7}   {:^26}   {:^26} {:>9} {:>7}\n", "clients", "tokens/s",
             "generate", "share", "with prompts", "share", "first token, ms", "between tokens, ms", "requests",
             "errors");
  fmt::print("{:>61}   {:>8} {:>8} {:>8}   {:>8} {:>8} {:>8}\n", "", "p50", "p95", "p99", "p50", "p95", "p99");
}

void print_row(const bench::ServeBenchRow& row) {
  const auto ms = [](const std::vector<double>& sorted, double p) { return 1e3 * bench::percentile(sorted, p); };
  const std::string who = row.rate > 0 ? fmt::format("{}/s", row.rate) : std::to_string(row.clients);
  fmt::print("{:>9} {:>10.1f} {:>10.1f} {:>6.1f}% {:>13.1f} {:>6.1f}%", who, row.tokens_per_s,
             row.generate_tokens_per_s, 100 * row.tokens_per_s / row.generate_tokens_per_s,
             row.with_prompts_tokens_per_s,
             row.with_prompts_tokens_per_s > 0 ? 100 * row.tokens_per_s / row.with_prompts_tokens_per_s : 0.0);
  for (const auto* values : {&row.load.first_token, &row.load.between_tokens}) {
    fmt::print("   {:>8.2f} {:>8.2f} {:>8.2f}", ms(*values, 0.5), ms(*values, 0.95), ms(*values, 0.99));
  }
  fmt::print(" {:>9} {:>7}{}\n", row.load.requests, row.load.refused + row.load.late, row.doubt.empty() ? "" : " ?");
  std::fflush(stdout);
}

void print_prefix_header() {
  fmt::print(
      "\nFirst token, ms: one client, prompts with {} tokens behind a prefix, which are unlike or begin with the same, "
      "cached tokens.\n{:>9}   {:^17}   {:^17} {:>8} {:>9} {:>7}\n{:>9}   {:>8} {:>8}   {:>8} {:>8}\n",
      bench::kNewTokens, "prefix", "unlike", "cached", "share", "requests", "errors", "", "p50", "p99", "p50", "p99");
}

void print_prefix(const bench::PrefixBenchRow& row) {
  fmt::print("{:>9}", row.tokens);
  for (const bench::LoadResult* load : {&row.unlike, &row.cached}) {
    fmt::print("   {:>8.2f} {:>8.2f}", 1e3 * bench::percentile(load->first_token, 0.5),
               1e3 * bench::percentile(load->first_token, 0.99));
  }
  fmt::print(" {:>8.3f} {:>9} {:>7}\n", row.share(), row.unlike.requests + row.cached.requests,
             row.unlike.refused + row.cached.refused);
  std::fflush(stdout);
}

nlohmann::ordered_json as_json(const bench::ServeBenchOptions& options, const bench::ServeBenchReport& report) {
  nlohmann::ordered_json json = report_of("serve", options.device);
  json["model"] = model_as_json(options.model, report.generate.parameters);
  json["threads"] = report.generate.threads;
  json["prompt"] = {options.prompt.low, options.prompt.high};
  json["tokens"] = {options.tokens.low, options.tokens.high};
  json["prefill_tokens_per_s"] = report.generate.prompts.front().tokens_per_s;
  const auto points = [](const std::vector<double>& sorted) {
    return nlohmann::ordered_json{{"p50", bench::percentile(sorted, 0.5)},
                                  {"p95", bench::percentile(sorted, 0.95)},
                                  {"p99", bench::percentile(sorted, 0.99)}};
  };
  for (const bench::ServeBenchRow& row : report.rows) {
    json["rows"].push_back({{"clients", row.clients},
                            {"rate", row.rate},
                            {"tokens_per_s", row.tokens_per_s},
                            {"generate_tokens_per_s", row.generate_tokens_per_s},
                            {"with_prompts_tokens_per_s", row.with_prompts_tokens_per_s},
                            {"first_token_s", points(row.load.first_token)},
                            {"between_tokens_s", points(row.load.between_tokens)},
                            {"requests", row.load.requests},
                            {"refused", row.load.refused},
                            {"late", row.load.late},
                            {"doubt", row.doubt}});
  }
  for (const bench::PrefixBenchRow& row : report.prefixes) {
    json["prefixes"].push_back({{"tokens", row.tokens},
                                {"new_tokens", bench::kNewTokens},
                                {"unlike_first_token_s", points(row.unlike.first_token)},
                                {"cached_first_token_s", points(row.cached.first_token)},
                                {"share", row.share()},
                                {"requests", row.unlike.requests + row.cached.requests},
                                {"refused", row.unlike.refused + row.cached.refused}});
  }
  return json;
}

// The closed loops over the number of clients.
void draw(const bench::ServeBenchReport& report, const std::string& path) {
  std::vector<double> clients, served, generated, median, tail;
  for (const bench::ServeBenchRow& row : report.rows) {
    if (row.rate > 0) continue;
    clients.push_back(static_cast<double>(row.clients));
    served.push_back(row.tokens_per_s);
    generated.push_back(row.generate_tokens_per_s);
    median.push_back(1e3 * bench::percentile(row.load.first_token, 0.5));
    tail.push_back(1e3 * bench::percentile(row.load.first_token, 0.99));
  }
  plot::Figure figure;
  plot::Panel& speed = figure.panels.emplace_back();
  speed.x = {.label = "clients", .scale = plot::Scale::log};
  speed.y = {.label = "tokens/s", .scale = plot::Scale::log};
  speed.series.push_back({.label = "behind HTTP", .x = clients, .y = served});
  speed.series.push_back({.label = "bench generate", .x = clients, .y = generated});
  plot::Panel& wait = figure.panels.emplace_back();
  wait.x = {.label = "clients", .scale = plot::Scale::log};
  wait.y = {.label = "first token, ms", .scale = plot::Scale::log};
  wait.series.push_back({.label = "p50", .x = clients, .y = median});
  wait.series.push_back({.label = "p99", .x = clients, .y = tail});
  plot::write_svg(figure, path);
}

void run(ServeBenchFlags& flags) {
  flags.report.prepare();
  bench::ServeBenchOptions& options = flags.options;
  options.model = bench_model(flags.model);
  options.prompt = range_of("--prompt", flags.prompt);
  options.tokens = range_of("--tokens", flags.tokens);
  if (!flags.replay.empty()) options.replay = lines_of(flags.replay);
  options.device = flags.device.open();
  fmt::print("{}\nbench generate first, then the server ...\n",
             describe_model(options.model, ParameterLayout(options.model).parameters()));
  std::fflush(stdout);
  bool first = true, first_prefix = true;
  Doubts doubts;
  const auto load = [&](const bench::ServeBenchRow& row) {
    if (std::exchange(first, false)) print_serve_header();
    print_row(row);
    doubts.add(fmt::format("{} clients", row.clients), row.doubt);
  };
  const auto prefix = [&](const bench::PrefixBenchRow& row) {
    if (std::exchange(first_prefix, false)) print_prefix_header();
    print_prefix(row);
  };
  const bench::ServeBenchReport report = bench::run_serve_bench(options, {.load = load, .prefix = prefix});
  fmt::print(
      "\nThreads: {}. Prompts are read at {:.1f} tokens/s; 'with prompts' is what generate comes to when it reads "
      "them as well.\n",
      report.generate.threads, report.generate.prompts.front().tokens_per_s);
  doubts.print();
  if (!flags.svg.empty()) draw(report, flags.svg);
  flags.report.finish(as_json(options, report));
}

}  // namespace

void add_bench_serve(CLI::App& group) {
  CLI::App* command = group.add_subcommand("serve", "A random model behind HTTP, driven by many clients");
  auto flags = std::make_shared<ServeBenchFlags>();
  bench::ServeBenchOptions& options = flags->options;
  command
      ->add_option("--clients", options.clients,
                   "Clients at once, comma-separated; each goes on when it has its answer")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--rate", options.rate,
                   "Then an open loop: requests per second, whether the ones before are answered or not")
      ->capture_default_str();
  command->add_option("--prompt", flags->prompt, "Tokens of a prompt: 200, or 50-400 for any number between")
      ->capture_default_str();
  command->add_option("--tokens", flags->tokens, "Tokens of an answer, likewise")->capture_default_str();
  command
      ->add_option(
          "--cached-prefix", options.prefixes,
          "Then the time to the first token behind prefixes of these lengths, comma-separated: unlike ones, and "
          "one that the server has in its cache")
      ->delimiter(',');
  command->add_option("--replay", flags->replay, "A file of requests, one JSON body a line, instead of drawn ones");
  command->add_option("--temperature", options.temperature, "Of sampling; 0: greedy")->capture_default_str();
  command->add_option("--seconds", options.seconds, "Of each measurement")->capture_default_str();
  command->add_option("--warm-up", options.warm_up, "Seconds before each that do not count")->capture_default_str();
  flags->device.add_to(*command);
  flags->report.add_to(*command);
  command->add_option("--svg", flags->svg, "Also draw the results, to this file");
  add_bench_model(*command, flags->model);
  command->footer(
      "Server and clients are one process and talk over loopback; all answers are streamed. 'generate' is what bench "
      "generate\nmeasures in the same run with as many sequences as there are clients; it reads no prompts, the server "
      "does.\n\n"
      "Example:  qdelta bench serve --model-config configs/340M.json --clients 1,16 --prompt 200 --tokens 128 --svg "
      "serve.svg");
  command->callback([flags] { run(*flags); });
}

}  // namespace qdelta
