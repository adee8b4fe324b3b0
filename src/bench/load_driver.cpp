#include "bench/load_driver.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/random.h"

namespace qdelta::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPatience = 20;  // ms without news before the clock is looked at

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One connection and the answer that comes on it.
class Client {
 public:
  Client(int port, int poll) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(static_cast<std::uint16_t>(port));
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    require(socket_ >= 0 && ::connect(socket_, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0,
            "cannot connect to port {}: {}", port, std::strerror(errno));
    const int yes = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    ::fcntl(socket_, F_SETFL, O_NONBLOCK);
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.ptr = this;
    ::epoll_ctl(poll, EPOLL_CTL_ADD, socket_, &wanted);
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] bool busy() const { return busy_; }

  // Requests are small: what the socket's buffer does not take at once is waited for.
  void send(const std::string& body, Clock::time_point due) {
    const std::string text = fmt::format(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t count = ::send(socket_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      require(count >= 0 || errno == EAGAIN, "the server has closed the connection");
      if (count > 0) at += static_cast<std::size_t>(count);
    }
    busy_ = true;
    begin_ = due;
    last_ = {};
    got_.clear();
  }

  // Reads what has come, in which part of the time that counts; in none where it does not yet.
  void read(LoadResult& result, std::optional<std::size_t> part) {
    std::array<char, 65536> buffer;  // NOLINT: to clear it would take longer than to read a token
    const ssize_t count = ::recv(socket_, buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EAGAIN) return;
    require(count > 0, "the server has closed the connection");
    got_.append(buffer.data(), static_cast<std::size_t>(count));
    take_events(result, part);
    const bool refused = got_.starts_with("HTTP/1.1 ") && !got_.starts_with("HTTP/1.1 200");
    if (!refused && !got_.ends_with("0\r\n\r\n")) return;
    if (refused && !got_.ends_with("}")) return;
    if (part) ++(refused ? result.refused : result.requests);
    busy_ = false;
  }

 private:
  // An event is a token; those that are whole are forgotten.
  void take_events(LoadResult& result, std::optional<std::size_t> part) {
    static constexpr std::string_view kMark = "data: {";
    std::size_t at = got_.find(kMark);
    if (at == std::string::npos) return;
    std::size_t after = 0;
    for (; at != std::string::npos; at = got_.find(kMark, after)) {
      const auto now = Clock::now();
      if (part) {
        ++result.tokens;
        ++result.tokens_of_part[*part];
        const bool first = last_ == Clock::time_point{};
        (first ? result.first_token : result.between_tokens)
            .push_back(std::chrono::duration<double>(now - (first ? begin_ : last_)).count());
      }
      last_ = now;
      after = at + kMark.size();
    }
    got_.erase(0, after);
  }

  int socket_;
  bool busy_ = false;
  std::string got_;
  Clock::time_point begin_, last_;
};

class Driver {
 public:
  explicit Driver(const Load& load) : load_(load), random_(load.seed), poll_(::epoll_create1(0)) {
    for (std::int64_t i = 0; i < load.clients; ++i) clients_.push_back(std::make_unique<Client>(load.port, poll_));
  }
  ~Driver() { ::close(poll_); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  LoadResult run() {
    const auto start = Clock::now();
    next_arrival_ = start;
    result_.tokens_of_part.assign(kLoadParts, 0);
    std::array<epoll_event, 256> events{};
    while (seconds_since(start) < load_.warm_up + load_.seconds) {
      const std::optional<std::size_t> part = part_at(seconds_since(start));
      if (load_.rate > 0) {
        send_due(part.has_value());
      } else {
        for (const auto& client : clients_) {
          if (client->busy()) continue;
          const std::string body = load_.next_request();  // before the clock is read: it is not the server's work
          client->send(body, Clock::now());
        }
      }
      const int ready =
          ::epoll_wait(poll_, events.data(), static_cast<int>(events.size()), load_.rate > 0 ? 1 : kPatience);
      for (int i = 0; i < ready; ++i) {
        static_cast<Client*>(events[static_cast<std::size_t>(i)].data.ptr)->read(result_, part);
      }
    }
    result_.seconds = load_.seconds;
    std::sort(result_.first_token.begin(), result_.first_token.end());
    std::sort(result_.between_tokens.begin(), result_.between_tokens.end());
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::optional<std::size_t> part_at(double seconds) const {
    if (seconds < load_.warm_up) return std::nullopt;
    const auto part = static_cast<std::int64_t>((seconds - load_.warm_up) / load_.seconds * kLoadParts);
    return static_cast<std::size_t>(std::min(part, kLoadParts - 1));
  }
  // Arrivals are independent of one another: the time between two is exponential.
  void send_due(bool counts) {
    for (; Clock::now() >= next_arrival_;) {
      const auto free =
          std::find_if(clients_.begin(), clients_.end(), [](const auto& client) { return !client->busy(); });
      if (free != clients_.end()) {
        (*free)->send(load_.next_request(), next_arrival_);
      } else if (counts) {
        ++result_.late;
      }
      const double wait = -std::log(1 - random_.uniform()) / load_.rate;
      next_arrival_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait));
    }
  }

  const Load& load_;
  Random random_;
  int poll_;
  std::vector<std::unique_ptr<Client>> clients_;
  Clock::time_point next_arrival_;
  LoadResult result_;
};

}  // namespace

LoadResult drive(const Load& load) { return Driver(load).run(); }

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const auto at = static_cast<std::size_t>(std::lround(p * static_cast<double>(sorted.size() - 1)));
  return sorted[at];
}

}  // namespace qdelta::bench
