// A plain HTTP client: one request on one connection, read to the end of the answer. And one that sends what it likes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qdelta::testing {

// A client that sends what it likes, and goes when it likes.
class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) {
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(static_cast<std::uint16_t>(port));
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) {
      close();
      throw std::runtime_error("cannot connect");
    }
    set_patience(60);
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void set_patience(int seconds) const {
    const timeval patience{seconds, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  // False where the other end does not take it.
  bool send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t count = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }
  void post(const std::string& path, const std::string& body) const {
    send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  void end_sending() const { ::shutdown(socket_, SHUT_WR); }
  // A little more; false where nothing comes any more.
  bool receive() {
    char buffer[16384];
    const ssize_t count = ::recv(socket_, buffer, sizeof(buffer), 0);
    if (count <= 0) return false;
    got_.append(buffer, static_cast<std::size_t>(count));
    return true;
  }
  // Until this is in what has come, or the other end closes.
  std::string read_until(std::string_view mark) {
    while (got_.find(mark) == std::string::npos && receive()) {
    }
    return got_;
  }
  std::string read_all() {
    while (receive()) {
    }
    return got_;
  }
  // One whole answer; what comes after it is kept for the next. Empty where none comes.
  std::string read_answer() {
    std::size_t end = std::string::npos;
    while ((end = answer_end()) == std::string::npos) {
      if (!receive()) return {};
    }
    std::string answer = got_.substr(0, end);
    got_.erase(0, end);
    return answer;
  }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  [[nodiscard]] std::size_t answer_end() const {
    const std::size_t head = got_.find("\r\n\r\n");
    if (head == std::string::npos) return head;
    const std::size_t length = got_.find("Content-Length: ");
    if (length != std::string::npos && length < head) {
      const std::size_t end = head + 4 + std::stoul(got_.substr(length + 16));
      return end <= got_.size() ? end : std::string::npos;
    }
    const std::size_t last = got_.find("\r\n0\r\n\r\n", head);
    return last == std::string::npos ? last : last + 7;
  }

  int socket_;
  std::string got_;
};

class HttpClient {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  struct Response {
    int status = 0;
    std::string head, body;

    [[nodiscard]] std::string get_header_value(const std::string& name) const {
      const std::size_t at = head.find("\r\n" + name + ": ");
      if (at == std::string::npos) return {};
      const std::size_t begin = at + name.size() + 4;
      return head.substr(begin, head.find("\r\n", begin) - begin);
    }
  };
  using Result = std::optional<Response>;

  explicit HttpClient(int port) : port_(port) {}

  [[nodiscard]] Result get(const std::string& path, const Headers& headers = {}) const {
    return request("GET", path, headers, "");
  }
  [[nodiscard]] Result post(const std::string& path, const std::string& body, const Headers& headers = {}) const {
    return request("POST", path, headers, body);
  }
  [[nodiscard]] Result request(const std::string& method, const std::string& path, const Headers& headers,
                               const std::string& body) const {
    std::string text = method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
    if (method != "GET") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    try {
      RawClient client(port_);
      client.send(text + "\r\n" + body);
      return parse(client.read_all());
    } catch (const std::runtime_error&) {
      return std::nullopt;
    }
  }
  static Result parse(const std::string& answer) {
    const std::size_t end = answer.find("\r\n\r\n");
    if (!answer.starts_with("HTTP/1.1 ") || end == std::string::npos) return std::nullopt;
    Response response{std::stoi(answer.substr(9)), answer.substr(0, end + 2), answer.substr(end + 4)};
    if (response.get_header_value("Transfer-Encoding") == "chunked") response.body = without_chunks(response.body);
    return response;
  }

 private:
  static std::string without_chunks(const std::string& body) {
    std::string out;
    for (std::size_t at = 0; at < body.size();) {
      const std::size_t line = body.find("\r\n", at);
      const std::size_t size = std::stoul(body.substr(at, line - at), nullptr, 16);
      if (size == 0) return out;
      out += body.substr(line + 2, size);
      at = line + 4 + size;
    }
    throw std::runtime_error("the answer's last chunk is missing");
  }

  int port_;
};

}  // namespace qdelta::testing
