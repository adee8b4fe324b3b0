#include "serve/server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <map>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "serve/api_error.h"
#include "serve/completion.h"
#include "serve/http.h"
#include "serve/http_text.h"
#include "serve/json_text.h"
#include "serve/memory_budget.h"
#include "serve/page.h"
#include "serve/request_log.h"
#include "serve/request_sequences.h"
#include "serve/response.h"
#include "serve/state_routes.h"

namespace qdelta::serve {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kModel = "/v1/models/";
constexpr std::chrono::milliseconds kPause{5};
// Tokens of a text and their digits, or the text of tokens with its escapes, while an answer is made of them.
constexpr std::size_t kBytesPerByte = 16;
constexpr std::chrono::seconds kHear{1};  // for the last words of answers that are cut off

HttpAnswer answer_of(int status, const json& body) { return {.status = status, .body = json_text(body)}; }
HttpAnswer answer_of(const ApiError& error) {
  HttpAnswer answer = answer_of(error.status(), error.body());
  if (error.status() == 503) answer.headers.emplace_back("Retry-After", "1");
  return answer;
}

// A text that the tokenizer cannot take is its sender's matter, whatever else goes wrong is ours.
int status_of(const Error& error) {
  if (error.status() == Status::out_of_memory) return 503;
  return error.status() == Status::invalid_argument || error.status() == Status::unsupported ? 400 : 500;
}

// What this path is asked with is another method.
HttpAnswer wrong_method(const HttpRequest& head, const char* right) {
  const bool several = std::string_view(right).find(',') != std::string_view::npos;
  HttpAnswer answer = answer_of(
      ApiError(405, fmt::format("{} is not for {}: {} {}", head.method, head.path, right, several ? "are" : "is")));
  answer.headers.emplace_back("Allow", right);
  return answer;
}

// The key in "Bearer KEY"; the scheme's name may be written in any case.
std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kBearer = "bearer ";
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; };
  if (!std::ranges::equal(authorization.substr(0, kBearer.size()), kBearer, same)) return {};
  return authorization.substr(kBearer.size());
}

// The same time whatever the key that was tried.
bool same_key(std::string_view tried, const std::string& key) {
  unsigned difference = tried.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    difference |=
        static_cast<unsigned>(static_cast<unsigned char>(tried[i]) ^ static_cast<unsigned char>(key[i % key.size()]));
  }
  return difference == 0;
}

HttpOptions http_options(const ServerOptions& options, const NamedStates* states) {
  HttpOptions http = options.http;
  http.host = options.host;
  http.port = options.port;
  http.max_body = options.max_body;
  if (states != nullptr) http.max_body = std::max(http.max_body, states->largest_file());
  http.max_bodies = std::max(http.max_bodies, http.max_body);
  if (!options.cors.empty()) {
    http.always = {{"Access-Control-Allow-Origin", options.cors},
                   {"Access-Control-Allow-Methods", "GET, POST, PUT, DELETE, OPTIONS"},
                   // Clients of OpenAI's send headers of their own; the star does not stand for the first.
                   {"Access-Control-Allow-Headers", "Authorization, Content-Type, *"},
                   {"Access-Control-Expose-Headers", "Qdelta-Cached-Tokens, Retry-After"}};
  }
  return http;
}

}  // namespace

class Server::Implementation {
 public:
  Implementation(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device,
                 const ServerOptions& options)
      : tokenizer_(tokenizer),
        options_(options),
        token_text_(tokenizer),
        started_(std::time(nullptr)),
        log_(options.log),
        budget_(options.max_memory),
        states_(options.states.folder.empty() ? nullptr : std::make_unique<NamedStates>(options.states, model)),
        state_routes_(states_.get(), budget_, options_.limits,
                      [this](const CompletionRequest& request, const std::shared_ptr<Exchange>& exchange) {
                        complete(request, exchange);
                      }),
        engine_(model, tokenizer, device, options.engine, metrics_),
        http_(http_options(options, states_.get()), routes()) {
    options_.limits.vocab_size = model.config().vocab_size;
    add_routes();
  }
  ~Implementation() {
    http_.stop();
    join_stopper();
  }

  [[nodiscard]] int port() const { return http_.port(); }

  bool serve() {
    http_.run();
    join_stopper();
    return drained_;
  }

  void stop(std::chrono::milliseconds grace) {
    if (stopping_.exchange(true)) return;
    engine_.close();
    const std::lock_guard lock(stopper_mutex_);  // it may be done before it is known here
    // Clients of what still runs are answered meanwhile, and new ones told that the server is stopping.
    stopper_ = std::thread([this, grace] {
      const auto end = Clock::now() + grace;
      drained_ = engine_.drained(grace);
      if (!drained_) engine_.abort();
      // The engine has said all; the clients have yet to hear it.
      const auto hear = std::max(end, Clock::now() + kHear);
      while (http_.busy() > 0 && Clock::now() < hear) std::this_thread::sleep_for(kPause);
      http_.stop();
    });
  }

 private:
  using Handler = std::function<void(const HttpRequest&, const std::shared_ptr<Exchange>&)>;

  void join_stopper() {
    const std::lock_guard lock(stopper_mutex_);
    if (stopper_.joinable()) stopper_.join();
  }

  [[nodiscard]] Routes routes() {
    return {.early = [this](const HttpRequest& head) { return early(head); },
            .max_body =
                [this](const HttpRequest& head) {
                  const bool upload = StateRoutes::claims(head.path) && state_routes_.is_upload(head);
                  return upload ? states_->largest_file() : options_.max_body;
                },
            .handle = [this](const HttpRequest& request,
                             const std::shared_ptr<Exchange>& exchange) { handle(request, exchange); },
            .error = [](int status, const std::string& why) { return json_text(ApiError(status, why).body()); },
            .ended =
                [this](const HttpRecord& record) {
                  metrics_.answered(record.status);
                  log_.write(record);
                }};
  }

  void add_routes() {
    gets_["/v1/models"] = [this] { return json{{"object", "list"}, {"data", json::array({model_info()})}}; };
    gets_["/tokenizer_info"] = [this] { return tokenizer_info(); };
    posts_["/tokenize"] = [this](const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
      const std::shared_ptr memory = memory_for(kBytesPerByte * request.body.size());
      const std::vector<std::int32_t> ids = tokenize(parse_tokenize(request.body));
      answer_counted(fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}]}})", ids.size(),
                                 options_.limits.max_prompt, fmt::join(ids, ",")),
                     memory, exchange);
    };
    posts_["/detokenize"] = [this](const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
      const std::vector<std::int32_t> ids = parse_detokenize(request.body, options_.limits);
      const std::shared_ptr memory = memory_for(kBytesPerByte * text_bytes(ids, tokenizer_));
      answer_counted(fmt::format(R"({{"prompt":{}}})", json_string(tokenizer_.decode(ids, Tokenizer::Special::keep))),
                     memory, exchange);
    };
    posts_["/v1/chat/completions"] = [this](const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
      complete(rendered(parse_chat(request.body, options_.limits)), exchange);
    };
    posts_["/v1/completions"] = [this](const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
      complete(parse_completion(request.body, options_.limits), exchange);
    };
  }

  // With the head alone: what is quick, and what is refused without reading its body. Everybody may ask how it is
  // going, however many there are.
  [[nodiscard]] std::optional<Routes::Early> early(const HttpRequest& head) {
    try {
      // Browsers ask without a key whether they may ask.
      if (head.method == "OPTIONS" && !options_.cors.empty()) return Routes::Early{{.status = 204, .body = {}}, false};
      check_key(head);
      if (StateRoutes::claims(head.path)) {
        state_routes_.check(head);
        if (const char* right = StateRoutes::other_methods(head))
          return Routes::Early{wrong_method(head, right), false};
        return std::nullopt;
      }
      if (head.method == "GET") return get(head);
      if (!posts_.contains(head.path)) {
        if (is_got(head.path)) return Routes::Early{wrong_method(head, "GET"), false};
        throw ApiError(404, fmt::format("there is no {} {}", head.method, head.path));
      }
      if (head.method != "POST") return Routes::Early{wrong_method(head, "POST"), false};
      if (!head.has_body) throw ApiError(411, "the body's length is missing");
      if (head.header("content-type").starts_with("multipart/")) {
        throw ApiError(415, "the body must be JSON, not a form");
      }
      return std::nullopt;
    } catch (const ApiError& error) {
      return Routes::Early{answer_of(error), false};
    }
  }

  void check_key(const HttpRequest& head) const {
    if (options_.api_key.empty() || head.path == "/health" || head.path == "/") return;
    if (same_key(bearer_key(head.header("authorization")), options_.api_key)) return;
    throw ApiError(401, "a key is needed: Authorization: Bearer KEY");
  }

  [[nodiscard]] bool is_got(const std::string& path) const {
    return path == "/" || path == "/health" || path == "/metrics" || path.starts_with(kModel) || gets_.contains(path);
  }

  [[nodiscard]] Routes::Early get(const HttpRequest& head) {
    if (head.path == "/health") {
      const ApiError stopping(503, "the server is stopping");
      return {stopping_ ? answer_of(stopping) : answer_of(200, {{"status", "ok"}}), true};
    }
    if (head.path == "/metrics") {
      return {{.status = 200, .type = "text/plain; version=0.0.4", .body = metrics_.text()}, true};
    }
    if (head.path == "/")
      return {{.status = 200, .type = "text/html; charset=utf-8", .body = std::string(page())}, false};
    if (head.path.starts_with(kModel)) {
      const std::string_view name = std::string_view(head.path).substr(kModel.size());
      if (unescaped(name) == options_.model_name) return {answer_of(200, model_info()), false};
      throw ApiError(404, fmt::format("there is no model '{}': this server has '{}'", name, options_.model_name));
    }
    if (const auto found = gets_.find(head.path); found != gets_.end()) return {answer_of(200, found->second()), false};
    if (posts_.contains(head.path)) return {wrong_method(head, "POST"), false};
    throw ApiError(404, fmt::format("there is no GET {}", head.path));
  }

  void handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    try {
      if (StateRoutes::claims(request.path)) return state_routes_.handle(request, exchange);
      posts_.at(request.path)(request, exchange);
    } catch (const ApiError& error) {
      exchange->answer(answer_of(error));
    } catch (const Error& error) {
      exchange->answer(answer_of(ApiError(status_of(error), error.what())));
    } catch (const std::bad_alloc&) {
      exchange->answer(answer_of(ApiError(503, "out of memory")));
    }
  }

  [[nodiscard]] json model_info() const {
    return {{"id", options_.model_name}, {"object", "model"}, {"created", started_}, {"owned_by", "qdelta"}};
  }

  [[nodiscard]] json tokenizer_info() const {
    const auto spelled = [this](std::optional<std::int32_t> id) {
      return id ? json(tokenizer_.token(*id)) : json(nullptr);
    };
    return {{"name", tokenizer_.name()},
            {"vocab_size", tokenizer_.vocab_size()},
            {"bos_token", spelled(tokenizer_.bos())},
            {"eos_token", spelled(tokenizer_.eos())},
            {"bos_token_id", tokenizer_.bos() ? json(*tokenizer_.bos()) : json(nullptr)},
            {"eos_token_id", tokenizer_.eos() ? json(*tokenizer_.eos()) : json(nullptr)}};
  }

  // A text that is nothing but the name of the begin- or end-of-text token is that token: clients find its id so.
  [[nodiscard]] std::vector<std::int32_t> tokenize(const TokenizeRequest& request) const {
    if (!request.add_special_tokens) {
      for (const std::optional<std::int32_t> id : {tokenizer_.bos(), tokenizer_.eos()}) {
        if (id && tokenizer_.token(*id) == request.prompt) return {*id};
      }
    }
    return request.add_special_tokens ? tokenizer_.encode_with_special(request.prompt)
                                      : tokenizer_.encode(request.prompt);
  }

  // For the log, as JSON.
  [[nodiscard]] std::string noted_prompts(const Job& job) const {
    json texts = json::array();
    for (const SequenceRequest& sequence : job.sequences()) {
      texts.push_back(tokenizer_.decode(sequence.prompt, Tokenizer::Special::keep));
    }
    return ",\"prompts\":" + json_text(texts);
  }

  // A chat's messages become its prompt.
  [[nodiscard]] CompletionRequest rendered(CompletionRequest request) const {
    if (options_.chat == nullptr) throw ApiError(400, options_.no_chat);
    try {
      request.prompts = {options_.chat->encode(request.messages, true)};
    } catch (const Error& error) {
      throw ApiError(400, error.what(), "messages");
    }
    if (std::get<std::vector<std::int32_t>>(request.prompts[0]).empty()) {
      throw ApiError(400, "the chat template makes no tokens of these messages", "messages");
    }
    return request;
  }

  [[nodiscard]] NamedStates& states(const char* parameter) const {
    if (states_ == nullptr) {
      throw ApiError(400, "this server keeps no states: it was started without --states FOLDER", parameter);
    }
    return *states_;
  }

  [[nodiscard]] std::unique_ptr<MemoryBudget::Share> memory_for(std::size_t bytes) {
    if (bytes > budget_.most()) {
      throw ApiError(400, fmt::format("the request could need {} MiB of memory, and this server has {}: ask for less",
                                      bytes >> 20U, budget_.most() >> 20U));
    }
    std::unique_ptr<MemoryBudget::Share> memory = budget_.take(bytes);
    if (!memory) throw ApiError(503, "the requests that are being answered need all memory: try again later");
    return memory;
  }

  // What may be long, and waits until its client has taken it: it is counted until then.
  static void answer_counted(std::string body, const std::shared_ptr<MemoryBudget::Share>& memory,
                             const std::shared_ptr<Exchange>& exchange) {
    memory->shrink(body.size());
    exchange->answer({.body = std::move(body), .held = memory});
  }

  void complete(const CompletionRequest& request, const std::shared_ptr<Exchange>& exchange) {
    const auto start = request.state.empty() ? nullptr : states("state").load(request.state);
    std::vector<SequenceRequest> sequences = sequences_of(request, tokenizer_, options_.limits, start);
    CompletionOptions options{
        .streamed = request.stream, .keep_state = nullptr, .only_state = request.only_state, .note = {}};
    if (!request.save_state.empty()) {
      const std::shared_ptr<StateCopy> end = sequences.front().end = states("save_state").blank();
      options.keep_state = [this, end, room = std::shared_ptr(states_->reserve(request.save_state))] {
        return json_text(as_json(states_->save(*room, *end)));
      };
    }
    std::unique_ptr<MemoryBudget::Share> memory = memory_for(bytes_of(request, sequences, tokenizer_));
    const auto job = std::make_shared<Job>(std::move(sequences));
    AnswerHead head{.id = fmt::format("{}cmpl-{}-{}", request.chat ? "chat" : "", started_, ++requests_),
                    .created = std::time(nullptr),
                    .model = options_.model_name};
    if (options_.log_prompts) options.note = noted_prompts(*job);
    const auto completion = std::make_shared<Completion>(
        exchange, job, Answer(tokenizer_, token_text_, request, job->sequences(), std::move(head)), std::move(memory),
        metrics_, std::move(options));
    completion->follow();
    switch (engine_.submit(job)) {
      case Engine::Admission::full:
        throw ApiError(503, fmt::format("{} requests are waiting already: try again later", options_.engine.max_queue));
      case Engine::Admission::stopping:
        throw ApiError(503, "the server is stopping");
      case Engine::Admission::accepted:
        break;
    }
    completion->begin();
  }

  const Tokenizer& tokenizer_;
  ServerOptions options_;
  TokenText token_text_;
  std::int64_t started_;
  Metrics metrics_;
  std::map<std::string, std::function<json()>, std::less<>> gets_;
  std::map<std::string, Handler, std::less<>> posts_;
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<bool> stopping_{false}, drained_{true};
  RequestLog log_;
  MemoryBudget budget_;
  std::unique_ptr<NamedStates> states_;  // null: none are kept
  StateRoutes state_routes_;
  Engine engine_;
  HttpServer http_;
  std::mutex stopper_mutex_;
  std::thread stopper_;
};

Server::Server(const LanguageModel& model, const Tokenizer& tokenizer, const Device& device,
               const ServerOptions& options)
    : implementation_(std::make_unique<Implementation>(model, tokenizer, device, options)) {}
Server::~Server() = default;
int Server::port() const { return implementation_->port(); }
bool Server::serve() { return implementation_->serve(); }
void Server::stop(std::chrono::milliseconds grace) { implementation_->stop(grace); }

}  // namespace qdelta::serve
