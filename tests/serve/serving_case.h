// A server on a port of its own, with a small random model that speaks bytes, or what another tokenizer makes of text.
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "files.h"
#include "http_client.h"
#include "infer/generating_case.h"
#include "serve/server.h"

namespace qdelta::testing {

inline constexpr const char* kChatTemplate =
    "{{ bos_token }}{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('no such role') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

class Serving {
 public:
  explicit Serving(serve::ServerOptions options = {}, std::string_view mixer = "q_delta",
                   std::unique_ptr<Tokenizer> tokenizer = std::make_unique<ByteTokenizer>())
      : model_(speaking_model(speaking_config(mixer))), tokenizer_(std::move(tokenizer)) {
    options.port = 0;
    if (options.chat == nullptr) options.chat = &chat_;
    Device device;
    device.threads = 1;
    server_ = std::make_unique<serve::Server>(*model_, *tokenizer_, device, options);
    thread_ = std::thread([this] { drained_ = server_->serve(); });
  }
  ~Serving() { static_cast<void>(stop(std::chrono::seconds(10))); }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // Whether all that ran came to its end.
  bool stop(std::chrono::milliseconds grace) {
    server_->stop(grace);
    if (thread_.joinable()) thread_.join();
    return drained_;
  }
  [[nodiscard]] serve::Server& server() { return *server_; }
  [[nodiscard]] int port() const { return server_->port(); }
  [[nodiscard]] const LanguageModel& model() const { return *model_; }

  [[nodiscard]] HttpClient client() const { return HttpClient(port()); }
  [[nodiscard]] HttpClient::Result post(const std::string& path, const nlohmann::json& body) const {
    return client().post(path, body.dump());
  }
  // The answer to a completion that must succeed.
  [[nodiscard]] nlohmann::json complete(const nlohmann::json& body) const {
    const HttpClient::Result result = post("/v1/completions", body);
    if (!result) throw std::runtime_error("no answer");
    EXPECT_EQ(result->status, 200) << result->body;
    return nlohmann::json::parse(result->body);
  }
  [[nodiscard]] std::string text(const nlohmann::json& body) const {
    return complete(body)["choices"][0]["text"].get<std::string>();
  }
  // A number from /metrics.
  [[nodiscard]] double metric(const std::string& name) const {
    const std::string all = client().get("/metrics")->body;
    const std::size_t at = all.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(all.substr(at + name.size() + 2));
  }
  // Waits until a metric has a value; fails after ten seconds.
  void wait_for(const std::string& name, double value) const {
    for (int i = 0; i < 2000; ++i) {
      if (metric(name) == value) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << name << " is " << metric(name) << ", not " << value;
  }
  [[nodiscard]] bool healthy() const {
    const HttpClient::Result result = client().get("/health");
    return result && result->status == 200;
  }

 private:
  std::unique_ptr<LanguageModel> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ChatTemplate chat_{kChatTemplate, *tokenizer_};
  std::unique_ptr<serve::Server> server_;
  std::thread thread_;
  bool drained_ = false;
};

// Each of these words is a token; others are the token [UNK], if that is among them.
inline std::unique_ptr<Tokenizer> word_tokenizer(const nlohmann::json& vocabulary) {
  const TemporaryFolder folder;
  const nlohmann::json tokenizer = {{"version", "1.0"},
                                    {"added_tokens", nlohmann::json::array()},
                                    {"normalizer", nullptr},
                                    {"pre_tokenizer", {{"type", "Whitespace"}}},
                                    {"post_processor", nullptr},
                                    {"decoder", nullptr},
                                    {"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "[UNK]"}}}};
  write_file(folder.file("tokenizer.json"), tokenizer.dump());
  return load_tokenizer(folder.file("tokenizer.json"));
}

// The JSON of a stream's events, and whether it ended as it should.
struct Events {
  std::vector<nlohmann::json> data;
  bool done = false;

  explicit Events(const std::string& body) {
    std::size_t at = 0;
    while (at < body.size()) {
      const std::size_t end = body.find("\n\n", at);
      EXPECT_EQ(body.substr(at, 6), "data: ");
      const std::string one = body.substr(at + 6, end - at - 6);
      EXPECT_FALSE(done) << "after [DONE]: " << one;
      if (one == "[DONE]") {
        done = true;
      } else {
        data.push_back(nlohmann::json::parse(one));
      }
      at = end + 2;
    }
  }
};

}  // namespace qdelta::testing
