#include "serve/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <mutex>
#include <random>
#include <thread>

#include "core/error.h"
#include "infer/prompt.h"
#include "serve/api_error.h"
#include "serve/http.h"
#include "serve/response.h"

namespace qdelta::serve {
namespace {

using httplib::Request;
using httplib::Response;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kJson = "application/json";
constexpr std::chrono::milliseconds kLook{50};  // how often to see whether a client that waits is still there
constexpr std::chrono::milliseconds kPause{5};
constexpr std::chrono::seconds kHear{1};  // for the last words of answers that are cut off
constexpr int kClientGone = 499;
// Threads beyond those that clients of the model can hold, so that somebody can still ask how it is going.
constexpr size_t kSpareThreads = 8;

void answer(Response& response, int status, const json& body) {
  response.status = status;
  response.set_content(body.dump(-1, ' ', false, json::error_handler_t::replace), kJson);
}

// The same time whatever the key that was tried.
bool same_key(const std::string& tried, const std::string& key) {
  unsigned difference = tried.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    difference |= static_cast<unsigned char>(tried[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

std::size_t threads_for(const EngineOptions& engine) {
  return static_cast<std::size_t>(engine.max_queue + engine.max_batch) + kSpareThreads;
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
        http_(threads_for(options.engine)),
        engine_(model, tokenizer, device, options.engine, metrics_) {
    options_.limits.vocab_size = model.config().vocab_size;
    add_routes();
    errno = 0;
    port_ = options.port == 0 ? http_.bind_to_any_port(options.host)
                              : (http_.bind_to_port(options.host, options.port) ? options.port : -1);
    if (port_ <= 0) {
      fail(Status::io, "cannot listen on {} port {}: {}", options.host, options.port,
           errno != 0 ? std::strerror(errno) : "there is no such address here");
    }
  }
  ~Implementation() {
    gone_ = true;
    join_stopper();
  }

  [[nodiscard]] int port() const { return port_; }

  bool serve() {
    http_.listen_after_bind();
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
      cut_off_ = !drained_;
      // The engine has said all; the clients have yet to hear it.
      const auto hear = std::max(end, Clock::now() + kHear);
      while (http_.busy() > 0 && Clock::now() < hear) std::this_thread::sleep_for(kPause);
      while (!http_.is_running() && !gone_) std::this_thread::sleep_for(kPause);  // asked to stop before it had begun
      http_.stop();
      http_.cut_off();
    });
  }

 private:
  void join_stopper() {
    const std::lock_guard lock(stopper_mutex_);
    if (stopper_.joinable()) stopper_.join();
  }

  // Answers errors of all kinds in the same form.
  template <class Action>
  static void guarded(Response& response, const Action& action) {
    try {
      action();
    } catch (const ApiError& error) {
      answer(response, error.status(), error.body());
    } catch (const std::bad_alloc&) {
      answer(response, 503, ApiError(503, "out of memory").body());
    } catch (const std::exception& error) {
      answer(response, 500, ApiError(500, error.what()).body());
    }
  }

  void add_routes() {
    http_.set_pre_routing_handler([this](const Request& request, Response& response) {
      const std::optional<ApiError> refusal = refuse_early(request);
      if (!refusal) return httplib::Server::HandlerResponse::Unhandled;
      Http::hang_up();
      answer(response, refusal->status(), refusal->body());
      return httplib::Server::HandlerResponse::Handled;
    });
    // What the library itself refuses: no such path, no HTTP, a header that is too long.
    http_.set_error_handler([](const Request& request, Response& response) {
      if (!response.body.empty()) return;
      Http::hang_up();
      const std::string why = response.status == 404
                                  ? fmt::format("there is no {} {}", request.method, request.path)
                                  : fmt::format("the request cannot be read (HTTP status {})", response.status);
      response.set_content(ApiError(response.status, why).body().dump(-1, ' ', false, json::error_handler_t::replace),
                           kJson);
    });
    http_.set_logger([this](const Request&, const Response& response) { metrics_.answered(response.status); });
    get("/health", [this] {
      if (stopping_) throw ApiError(503, "the server is stopping");
      return json{{"status", "ok"}};
    });
    get("/v1/models", [this] {
      const json model = {
          {"id", options_.model_name}, {"object", "model"}, {"created", started_}, {"owned_by", "qdelta"}};
      return json{{"object", "list"}, {"data", json::array({model})}};
    });
    get("/tokenizer_info", [this] { return tokenizer_info(); });
    http_.Get("/metrics", [this](const Request&, Response& response) {
      response.set_content(metrics_.text(), "text/plain; version=0.0.4");
    });
    post("/tokenize", [this](const std::string& body) {
      const std::vector<std::int32_t> ids = tokenize(parse_tokenize(body));
      return json{{"count", ids.size()}, {"max_model_len", options_.limits.max_prompt}, {"tokens", ids}};
    });
    post("/detokenize", [this](const std::string& body) {
      const std::vector<std::int32_t> ids = parse_detokenize(body, options_.limits);
      return json{{"prompt", tokenizer_.decode(ids, Tokenizer::Special::keep)}};
    });
    http_.Post(kCompletions, [this](const Request& request, Response& response, const httplib::ContentReader& reader) {
      const auto begin = Clock::now();
      guarded(response, [&] { complete(read_body(request, reader), response, begin); });
    });
  }
  template <class Make>
  void get(const char* path, Make make) {
    http_.Get(path, [make](const Request&, Response& response) {
      guarded(response, [&] { answer(response, 200, make()); });
    });
  }
  template <class Make>
  void post(const char* path, Make make) {
    http_.Post(path, [this, make](const Request& request, Response& response, const httplib::ContentReader& reader) {
      guarded(response, [&] { answer(response, 200, make(read_body(request, reader))); });
    });
  }
  void completed(Clock::time_point begin) {
    metrics_.completed(std::chrono::duration<double>(Clock::now() - begin).count());
  }

  // Before the library reads the body: of what is not for us it would read any amount.
  [[nodiscard]] std::optional<ApiError> refuse_early(const Request& request) const {
    constexpr std::string_view kBearer = "Bearer ";
    const std::string given = request.get_header_value("Authorization");
    const bool may_pass = options_.api_key.empty() || request.path == "/health" ||
                          (given.starts_with(kBearer) && same_key(given.substr(kBearer.size()), options_.api_key));
    if (!may_pass) return ApiError(401, "a key is needed: Authorization: Bearer KEY");
    if (request.method == "GET" || request.method == "HEAD") return std::nullopt;
    if (request.method != "POST") return ApiError(405, fmt::format("{} is not for this server", request.method));
    for (const char* path : {kCompletions, "/tokenize", "/detokenize"}) {
      if (request.path == path) return std::nullopt;
    }
    return ApiError(404, fmt::format("there is no POST {}", request.path));
  }

  // However it was sent: in one piece, in chunks, or compressed, it has to fit.
  std::string read_body(const Request& request, const httplib::ContentReader& reader) const {
    const auto refuse = [](int status, const std::string& why) {
      Http::hang_up();
      throw ApiError(status, why);
    };
    const std::string too_large = fmt::format("the body is larger than {} bytes", options_.max_body);
    if (request.is_multipart_form_data()) refuse(415, "the body must be JSON, not a form");
    if (!request.has_header("Content-Length") && !request.has_header("Transfer-Encoding")) {
      refuse(411, "the body's length is missing");
    }
    if (request.get_header_value<std::uint64_t>("Content-Length") > options_.max_body) refuse(413, too_large);
    std::string body;
    bool fits = true;
    const bool whole = reader([&](const char* data, size_t size) {
      fits = body.size() + size <= options_.max_body;
      if (fits) body.append(data, size);
      return fits;
    });
    if (!fits) refuse(413, too_large);
    if (!whole) refuse(400, "the body ends too early, or cannot be decoded");
    return body;
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
    return encode_prompt(tokenizer_, request.prompt, request.add_special_tokens);
  }

  // What the sequences of a request are to do.
  [[nodiscard]] std::vector<SequenceRequest> sequences_of(const CompletionRequest& request) const {
    std::random_device entropy;
    std::vector<SequenceRequest> sequences;
    std::int64_t tokens = 0;
    for (const Prompt& prompt : request.prompts) {
      SequenceRequest sequence;
      if (const auto* text = std::get_if<std::string>(&prompt)) {
        sequence.prompt = encode_prompt(tokenizer_, *text, request.add_special_tokens);
        if (sequence.prompt.empty())
          throw ApiError(400, "prompt is empty, and no begin-of-text token stands before it", "prompt");
      } else {
        sequence.prompt = std::get<std::vector<std::int32_t>>(prompt);
      }
      if (static_cast<std::int64_t>(sequence.prompt.size()) > options_.limits.max_prompt) {
        throw ApiError(400,
                       fmt::format("prompt has {} tokens, and this server takes at most {}", sequence.prompt.size(),
                                   options_.limits.max_prompt),
                       "prompt");
      }
      tokens += static_cast<std::int64_t>(sequence.prompt.size()) * request.n;
      if (tokens > options_.limits.max_request) {
        throw ApiError(400,
                       fmt::format("the prompts, times n, have more than {} tokens, which is all that this server "
                                   "takes at once",
                                   options_.limits.max_request),
                       "prompt");
      }
      sequence.options = {.sampling = request.sampling,
                          .max_tokens = request.max_tokens,
                          .stop = request.stop,
                          .stop_at_eos = !request.ignore_eos,
                          .logprobs = request.logprobs.value_or(-1),
                          .score_prompt = request.echo && request.logprobs};
      for (std::int64_t sample = 0; sample < request.n; ++sample) {
        if (!request.seeded) sequence.options.sampling.seed = (std::uint64_t{entropy()} << 32U) | entropy();
        sequence.options.stream = static_cast<std::uint64_t>(sample);
        sequences.push_back(sequence);
      }
    }
    return sequences;
  }

  void complete(const std::string& body, Response& response, Clock::time_point begin) {
    const CompletionRequest request = parse_completion(body, options_.limits);
    const auto job = std::make_shared<Job>(sequences_of(request));
    const std::string id = fmt::format("cmpl-{}-{}", started_, ++requests_);
    const auto reply = std::make_shared<Answer>(tokenizer_, token_text_, request, job->sequences(), id,
                                                std::time(nullptr), options_.model_name);
    switch (engine_.submit(job)) {
      case Engine::Admission::full:
        response.set_header("Retry-After", "1");
        throw ApiError(503, fmt::format("{} requests are waiting already: try again later", options_.engine.max_queue));
      case Engine::Admission::stopping:
        throw ApiError(503, "the server is stopping");
      case Engine::Admission::accepted:
        break;
    }
    response.status = 200;
    if (request.stream) {
      response.set_header("Cache-Control", "no-cache");
      response.set_chunked_content_provider("text/event-stream",
                                            [this, job, reply, begin](size_t, httplib::DataSink& sink) {
                                              const bool sent = stream(*job, *reply, sink);
                                              if (sent) completed(begin);
                                              return sent;
                                            });
      return;
    }
    const bool there = follow(*job, [&](Update update) {
      reply->add(std::move(update));
      return true;
    });
    if (!there) {
      Http::hang_up();
      response.status = kClientGone;
      response.set_content("{}", kJson);
      return;
    }
    if (const std::string why = job->failure(); !why.empty()) throw ApiError(500, why);
    response.set_content(reply->whole(), kJson);
    completed(begin);
  }

  // Passes on the updates of a request until its end. False where the client has gone, or `take` says so.
  template <class Take>
  bool follow(Job& job, const Take& take) {
    bool there = true;
    auto look = Clock::now() + kLook;
    while (there && !job.ended()) {
      if (cut_off_) {
        job.fail("the server is stopping");
        break;
      }
      if (std::optional<Update> update = job.next(kLook)) there = take(*std::move(update));
      if (there && Clock::now() >= look) {
        there = Http::connection().alive();
        look = Clock::now() + kLook;
      }
    }
    if (!there) job.cancel();
    return there;
  }

  bool stream(Job& job, Answer& reply, httplib::DataSink& sink) {
    const auto send = [&sink](const std::string& text) { return text.empty() || sink.write(text.data(), text.size()); };
    if (!follow(job, [&](Update update) { return send(reply.events(std::move(update))); })) return false;
    const std::string why = job.failure();
    const bool sent = send(why.empty() ? reply.last_events() : event(ApiError(500, why).body()));
    sink.done();
    return sent;
  }

  static constexpr const char* kCompletions = "/v1/completions";

  const Tokenizer& tokenizer_;
  ServerOptions options_;
  TokenText token_text_;
  std::int64_t started_;
  Metrics metrics_;
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<bool> stopping_{false}, cut_off_{false}, drained_{true}, gone_{false};
  int port_ = -1;
  Http http_;
  Engine engine_;
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
