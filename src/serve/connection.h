// A client's connection, as the HTTP library reads and writes it. Its own would not tell a handler that the client has
// gone, nor let go of an idle one when the server stops.
#pragma once

#include <httplib.h>

#include <array>
#include <string>

namespace qdelta::serve {

class Connection : public httplib::Stream {
 public:
  explicit Connection(int socket);

  [[nodiscard]] bool is_readable() const override;
  [[nodiscard]] bool is_writable() const override;
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  using Stream::write;
  void get_remote_ip_and_port(std::string& address, int& port) const override;
  void get_local_ip_and_port(std::string& address, int& port) const override;
  [[nodiscard]] socket_t socket() const override { return socket_; }

  // Waits for the first byte of a request; false where none has come in so many milliseconds, or the client has gone.
  [[nodiscard]] bool wait_for_request(int milliseconds) const;
  // Whether the other end is still there. One that has only stopped sending counts as gone.
  [[nodiscard]] bool alive() const;
  // Reads what comes and forgets it, until the other end closes or so many milliseconds have passed.
  void drain(int milliseconds);

 private:
  int socket_;
  std::array<char, 16384> buffer_{};
  size_t begin_ = 0, end_ = 0;
};

}  // namespace qdelta::serve
