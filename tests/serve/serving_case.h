// A server on a port of its own, with a small random model that speaks bytes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "infer/generating_case.h"
#include "serve/server.h"

namespace qdelta::testing {

class Serving {
 public:
  explicit Serving(serve::ServerOptions options = {}, std::string_view mixer = "q_delta")
      : model_(speaking_model(speaking_config(mixer))) {
    options.port = 0;
    Device device;
    device.threads = 1;
    server_ = std::make_unique<serve::Server>(*model_, tokenizer_, device, options);
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

  [[nodiscard]] httplib::Client client() const {
    httplib::Client some("127.0.0.1", port());
    some.set_read_timeout(60);
    return some;
  }
  [[nodiscard]] httplib::Result post(const std::string& path, const nlohmann::json& body) const {
    return client().Post(path, body.dump(), "application/json");
  }
  // The answer to a completion that must succeed.
  [[nodiscard]] nlohmann::json complete(const nlohmann::json& body) const {
    const httplib::Result result = post("/v1/completions", body);
    if (!result) throw std::runtime_error("no answer: " + httplib::to_string(result.error()));
    EXPECT_EQ(result->status, 200) << result->body;
    return nlohmann::json::parse(result->body);
  }
  [[nodiscard]] std::string text(const nlohmann::json& body) const {
    return complete(body)["choices"][0]["text"].get<std::string>();
  }
  // A number from /metrics.
  [[nodiscard]] double metric(const std::string& name) const {
    const std::string all = client().Get("/metrics")->body;
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
    const httplib::Result result = client().Get("/health");
    return result && result->status == 200;
  }

 private:
  std::unique_ptr<LanguageModel> model_;
  ByteTokenizer tokenizer_;
  std::unique_ptr<serve::Server> server_;
  std::thread thread_;
  bool drained_ = false;
};

// A client that sends what it likes, and goes when it likes.
class RawClient {
 public:
  explicit RawClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(static_cast<std::uint16_t>(port));
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) {
      throw std::runtime_error("cannot connect");
    }
    const timeval patience{20, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void send(std::string_view text) const { static_cast<void>(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL)); }
  void post(const std::string& path, const std::string& body) const {
    send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  void end_sending() const { ::shutdown(socket_, SHUT_WR); }
  // Until this is in what has come, or the other end closes.
  std::string read_until(std::string_view mark) {
    char buffer[4096];
    while (got_.find(mark) == std::string::npos) {
      const ssize_t count = ::recv(socket_, buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      got_.append(buffer, static_cast<std::size_t>(count));
    }
    return got_;
  }
  std::string read_all() { return read_until("\x01 nothing has this \x01"); }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  int socket_;
  std::string got_;
};

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
