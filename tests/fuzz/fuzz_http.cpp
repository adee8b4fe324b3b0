// Feeds bytes to a server over a connection of their own, as a client would, and then ends its side of it. Whatever
// they are, the server answers in HTTP or not at all, closes the connection, and goes on serving others.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "expect.h"
#include "io/file_descriptor.h"
#include "serve/api_error.h"
#include "serve/http.h"
#include "serve/request.h"

namespace {

using qdelta::FileDescriptor;
using qdelta::fuzz::expect;
namespace serve = qdelta::serve;

// What a completion's body is parsed with.
serve::HttpAnswer answer_to(const serve::HttpRequest& request) {
  serve::Limits limits;
  limits.vocab_size = 300;
  try {
    if (request.path == "/v1/completions") static_cast<void>(serve::parse_completion(request.body, limits));
    if (request.path == "/v1/chat/completions") static_cast<void>(serve::parse_chat(request.body, limits));
  } catch (const serve::ApiError& error) {
    return {.status = error.status(), .body = error.body().dump()};
  }
  return {.status = 200, .body = std::to_string(request.body.size())};
}

serve::Routes routes() {
  serve::Routes routes;
  routes.early = [](const serve::HttpRequest& head) -> std::optional<serve::Routes::Early> {
    if (head.path == "/health") return serve::Routes::Early{.answer = {.body = "{}"}, .urgent = true};
    if (head.path == "/refused") return serve::Routes::Early{.answer = {.status = 404, .body = "{}"}};
    return std::nullopt;
  };
  routes.max_body = [](const serve::HttpRequest& /*head*/) { return std::size_t{4096}; };
  routes.handle = [](const serve::HttpRequest& request, const std::shared_ptr<serve::Exchange>& exchange) {
    if (request.path != "/stream") return exchange->answer(answer_to(request));
    auto left = std::make_shared<std::atomic<int>>(3);
    exchange->stream({.type = "text/event-stream", .body = {}},
                     [left] { return serve::Exchange::Piece{.data = "data: x\n\n", .end = --*left == 0}; });
  };
  routes.error = [](int status, const std::string& why) { return std::to_string(status) + " " + why; };
  routes.ended = [](const serve::HttpRecord& record) {
    expect(record.status >= 200 && record.status < 600, "a request that ended with no status");
  };
  return routes;
}

class RunningServer {
 public:
  RunningServer() : server_(options(), routes()), thread_([this] { server_.run(); }) {}
  ~RunningServer() {
    server_.stop();
    thread_.join();
  }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;
  [[nodiscard]] int port() const { return server_.port(); }

 private:
  static serve::HttpOptions options() {
    serve::HttpOptions options;
    options.threads = 1;
    options.workers = 1;
    options.max_body = 4096;
    return options;
  }
  serve::HttpServer server_;
  std::thread thread_;
};

sockaddr_in address(std::uint32_t host, int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(host);
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  return to;
}

// All that the server answers to these bytes.
std::string conversation(int port, std::string_view bytes) {
  // From ever other addresses: a port is not free again at once after a connection.
  static std::uint32_t clients = 0;
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in from = address(0x7f010000U + clients++ % 0x10000U, 0);
  const sockaddr_in to = address(0x7f000001U, port);
  const timeval patience{.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const int at_once = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, IP_BIND_ADDRESS_NO_PORT, &at_once, sizeof at_once);
  expect(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0, "no address");
  expect(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0, "no connection");
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) break;  // it has heard enough
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  ::shutdown(socket.get(), SHUT_WR);
  std::string answer;
  char buffer[4096];
  while (true) {
    const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, 0);
    if (got < 0) expect(errno != EAGAIN && errno != EWOULDBLOCK, "a connection that stays open");
    if (got <= 0) return answer;
    answer.append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const RunningServer server;
  const std::string answer = conversation(server.port(), {reinterpret_cast<const char*>(data), size});
  expect(answer.empty() || answer.starts_with("HTTP/1."), "an answer that is no HTTP");
  static int inputs = 0;
  if (++inputs % 256 == 0) {
    const std::string good =
        conversation(server.port(), "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    expect(good.starts_with("HTTP/1.1 200"), "a server that serves no more");
  }
  return 0;
}
