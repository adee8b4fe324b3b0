// qdelta serve: a model behind HTTP.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <thread>

#include "cli/cli.h"
#include "cli/device_flags.h"
#include "cli/model_folder.h"
#include "cli/stop_signal.h"
#include "data/tokenizer.h"
#include "io/warn.h"
#include "model/checkpoint.h"
#include "serve/server.h"

namespace qdelta {
namespace {

struct ServeFlags {
  std::string model, tokenizer;
  serve::ServerOptions server;
  std::int64_t max_body = 8, max_memory = 1024, max_connections = 2048, cache_memory = 512, cache_disk = 4096,
               max_states = 256, states_disk = 4096;
  double grace = 30;
  DeviceFlags device;
};

// A folder's own name, or its parent's where it is a step of a run.
std::string name_of(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::weakly_canonical(folder);
  return path.filename().empty() ? path.parent_path().filename().string() : path.filename().string();
}

void check(const ServeFlags& flags) {
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    require(value >= least, "{} is {}, expected at least {}", name, value, least);
  };
  require(flags.server.port >= 0 && flags.server.port <= 65535, "port is {}, expected 0 (any) to 65535",
          flags.server.port);
  at_least("max-batch", flags.server.engine.max_batch, 1);
  at_least("max-queue", flags.server.engine.max_queue, 1);
  require(flags.server.engine.max_queue <= 4096 && flags.server.engine.max_batch <= 4096,
          "max-queue is {} and max-batch {}, expected at most 4096", flags.server.engine.max_queue,
          flags.server.engine.max_batch);
  at_least("max-tokens", flags.server.limits.max_tokens, 1);
  at_least("max-prompt", flags.server.limits.max_prompt, 1);
  at_least("max-request", flags.server.limits.max_request, 1);
  at_least("max-sequences", flags.server.limits.max_sequences, 1);
  at_least("max-body", flags.max_body, 1);
  require(flags.max_body <= 4096, "max-body is {}, expected at most 4096 (MiB)", flags.max_body);
  at_least("max-memory", flags.max_memory, 1);
  require(flags.max_memory <= 1 << 24, "max-memory is {}, expected at most {} (MiB)", flags.max_memory, 1 << 24);
  at_least("max-connections", flags.max_connections, 1);
  require(flags.cache_memory >= 0 && flags.cache_memory <= 1 << 24, "cache-memory is {}, expected 0 to {} (MiB)",
          flags.cache_memory, 1 << 24);
  require(flags.cache_disk >= 0 && flags.cache_disk <= 1 << 24, "cache-disk is {}, expected 0 to {} (MiB)",
          flags.cache_disk, 1 << 24);
  at_least("max-states", flags.max_states, 1);
  require(flags.states_disk >= 1 && flags.states_disk <= 1 << 24, "states-disk is {}, expected 1 to {} (MiB)",
          flags.states_disk, 1 << 24);
  require(flags.grace >= 0 && flags.grace <= 1e6, "grace is {}, expected 0 seconds or more", flags.grace);
}

void run_serve(ServeFlags& flags) {
  check(flags);
  flags.server.max_body = static_cast<std::size_t>(flags.max_body) << 20U;
  flags.server.engine.cache.memory = static_cast<std::size_t>(flags.cache_memory) << 20U;
  flags.server.engine.cache.disk = static_cast<std::size_t>(flags.cache_disk) << 20U;
  if (flags.cache_disk == 0 || flags.cache_memory == 0) flags.server.engine.cache.folder.clear();
  flags.server.states.most = static_cast<std::size_t>(flags.max_states);
  flags.server.states.disk = static_cast<std::size_t>(flags.states_disk) << 20U;
  flags.server.max_memory = static_cast<std::size_t>(flags.max_memory) << 20U;
  flags.server.http.max_connections = static_cast<std::size_t>(flags.max_connections);
  const StopSignal stop;  // before any thread that computes
  if (flags.server.model_name.empty()) flags.server.model_name = name_of(flags.model);
  flags.model = model_folder(flags.model);
  const auto model = load_model(flags.model);
  const auto tokenizer = tokenizer_of(model->config(), flags.model, flags.tokenizer);

  // A template that cannot be read is no reason not to serve the rest.
  std::unique_ptr<ChatTemplate> chat;
  try {
    chat = ChatTemplate::load(flags.model, *tokenizer);
  } catch (const Error& error) {
    flags.server.no_chat = fmt::format("the model's chat template cannot be used: {}", error.what());
    warn(flags.server.no_chat);
  }
  flags.server.chat = chat.get();

  const Device device = flags.device.open();
  serve::Server server(*model, *tokenizer, device, flags.server);
  warn(fmt::format("{}: listening on http://{}:{}, up to {} sequences at once; Ctrl-C stops", flags.server.model_name,
                   flags.server.host, server.port(), flags.server.engine.max_batch));

  std::atomic<bool> ended{false};
  std::thread watcher([&] {
    while (!stop.raised() && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (ended) return;
    warn(fmt::format("stopping: what runs has {} seconds; Ctrl-C again ends at once", flags.grace));
    server.stop(std::chrono::milliseconds(static_cast<std::int64_t>(flags.grace * 1000)));
  });
  const bool drained = server.serve();
  ended = true;
  watcher.join();
  require(stop.raised(), "the server's socket was closed under its hands");
  warn(drained ? "stopped" : "stopped; what had not ended was cut off");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  flags->server.model_name.clear();
  CLI::App* command = app.add_subcommand("serve", "A model behind HTTP, with the completions that OpenAI's API has");
  command->add_option("--model", flags->model, kModelHelp)->required();
  command->add_option("--tokenizer", flags->tokenizer, "Another tokenizer than the model folder's");
  serve::ServerOptions& server = flags->server;
  command->add_option("--host", server.host, "Address to listen on; 0.0.0.0: all, so that others can reach it")
      ->capture_default_str();
  command->add_option("--port", server.port, "0: any that is free, and it says which")->capture_default_str();
  command->add_option("--name", server.model_name, "What the model is called in answers. Default: its folder's name");
  command->add_option("--api-key", server.api_key, "Clients must send it: Authorization: Bearer KEY")
      ->envname("QDELTA_API_KEY");
  command->add_option("--cors", server.cors, "The origin whose pages may use this server from a browser; *: any");
  command->add_option("--log", server.log, "A line of JSON for each request goes to this file; -: to standard error");
  command->add_flag("--log-prompts", server.log_prompts, "--log also has the prompts");
  command->add_option("--max-batch", server.engine.max_batch, "Sequences that are worked on at once")
      ->capture_default_str();
  command
      ->add_option("--max-queue", server.engine.max_queue, "Requests that may wait; more are told to come back (503)")
      ->capture_default_str();
  command->add_option("--max-tokens", server.limits.max_tokens, "Most tokens that a request may ask for")
      ->capture_default_str();
  command->add_option("--max-prompt", server.limits.max_prompt, "Most tokens of a prompt")->capture_default_str();
  command->add_option("--max-request", server.limits.max_request, "Most tokens of all prompts of a request, times n")
      ->capture_default_str();
  command->add_option("--max-sequences", server.limits.max_sequences, "Most prompts, times n, in one request")
      ->capture_default_str();
  command->add_option("--max-body", flags->max_body, "Most MiB of a request")->capture_default_str();
  command->add_option("--max-memory", flags->max_memory, "Most MiB that requests and their answers may take together")
      ->capture_default_str();
  command->add_option("--max-connections", flags->max_connections, "Most connections; the longest idle give way")
      ->capture_default_str();
  command
      ->add_option("--cache-memory", flags->cache_memory,
                   "MiB of the device for states of prompts, so that what begins alike is read once; 0: none")
      ->capture_default_str();
  command->add_option("--cache-folder", server.engine.cache.folder,
                      "States that memory has no room for go to this folder, and all of them when the server stops");
  command->add_option("--cache-disk", flags->cache_disk, "Most MiB of states in --cache-folder")->capture_default_str();
  command->add_option("--states", server.states.folder,
                      "A folder for states that clients give names (files as generate --save-state makes them)");
  command->add_option("--max-states", flags->max_states, "Most states in --states")->capture_default_str();
  command->add_option("--states-disk", flags->states_disk, "Most MiB of states in --states")->capture_default_str();
  command->add_option("--grace", flags->grace, "Seconds that running requests have when the server is stopped")
      ->capture_default_str();
  flags->device.add_to(*command);
  command->footer(
      "Endpoints: POST /v1/completions, POST /v1/chat/completions, GET /v1/models, GET and POST /v1/states,\n"
      "           POST /tokenize, POST /detokenize, GET /tokenizer_info, GET /health, GET /metrics.\n"
      "           docs/serving.md has them all.\n"
      "\n"
      "Examples:\n"
      "  qdelta serve --model run --port 8000\n"
      "  curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 40}'\n"
      "  lm_eval --model local-completions --tasks lambada_openai \\\n"
      "    --model_args "
      "model=x,base_url=http://127.0.0.1:8000/v1/completions,tokenizer_backend=remote,max_length=8192");
  command->callback([flags] { run_serve(*flags); });
}

}  // namespace qdelta
