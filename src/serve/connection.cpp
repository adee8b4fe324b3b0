#include "serve/connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

namespace qdelta::serve {
namespace {

constexpr int kPatience = 30'000;  // milliseconds that a client may take over some bytes, either way

// Whether a socket is ready for `what`; a hang-up counts, for the read or write that follows will say so.
bool ready(int socket, short what, int milliseconds) {
  pollfd wanted{socket, what, 0};
  int count = -1;
  do count = ::poll(&wanted, 1, milliseconds);
  while (count < 0 && errno == EINTR);
  return count > 0;
}

void name_of(const sockaddr_storage& where, socklen_t length, std::string& address, int& port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&where), length, host.data(), host.size(), service.data(),
                    service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return;
  }
  address = host.data();
  std::from_chars(service.data(), service.data() + std::strlen(service.data()), port);
}

}  // namespace

// The library sends the head and the body of an answer apart. Without this the body would wait for the client to
// acknowledge the head, which clients take their time over: 40 ms on Linux.
Connection::Connection(int socket) : socket_(socket) {
  const int yes = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

bool Connection::is_readable() const { return begin_ < end_ || ready(socket_, POLLIN, kPatience); }

bool Connection::is_writable() const { return ready(socket_, POLLOUT, kPatience) && alive(); }

ssize_t Connection::read(char* to, size_t size) {
  if (begin_ == end_) {
    if (!ready(socket_, POLLIN, kPatience)) return -1;
    ssize_t count = -1;
    do count = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
    while (count < 0 && errno == EINTR);
    if (count <= 0) return count;
    begin_ = 0;
    end_ = static_cast<size_t>(count);
  }
  const size_t count = std::min(size, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, count);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* from, size_t size) {
  if (!ready(socket_, POLLOUT, kPatience)) return -1;
  ssize_t count = -1;
  do count = ::send(socket_, from, size, MSG_NOSIGNAL);
  while (count < 0 && errno == EINTR);
  return count;
}

void Connection::get_remote_ip_and_port(std::string& address, int& port) const {
  sockaddr_storage where{};
  socklen_t length = sizeof(where);
  if (::getpeername(socket_, reinterpret_cast<sockaddr*>(&where), &length) == 0) name_of(where, length, address, port);
}

void Connection::get_local_ip_and_port(std::string& address, int& port) const {
  sockaddr_storage where{};
  socklen_t length = sizeof(where);
  if (::getsockname(socket_, reinterpret_cast<sockaddr*>(&where), &length) == 0) name_of(where, length, address, port);
}

bool Connection::wait_for_request(int milliseconds) const {
  return begin_ < end_ || (ready(socket_, POLLIN, milliseconds) && alive());
}

void Connection::drain(int milliseconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0 || !ready(socket_, POLLIN, static_cast<int>(left.count()))) return;
    if (::recv(socket_, buffer_.data(), buffer_.size(), 0) <= 0) return;
  }
}

bool Connection::alive() const {
  if (!ready(socket_, POLLIN, 0)) return true;  // nothing to say
  char byte = 0;
  return ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

}  // namespace qdelta::serve
