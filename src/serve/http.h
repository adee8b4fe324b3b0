// The HTTP library with connections of ours, so that a handler can see whether its client is still there, and a server
// that stops does not wait for clients that say nothing.
#pragma once

#include <httplib.h>

#include <atomic>
#include <mutex>
#include <set>

#include "serve/connection.h"

namespace qdelta::serve {

class Http : public httplib::Server {
 public:
  // So many threads, each with one client at a time. When all have one, those that are idle are let go.
  explicit Http(size_t threads);

  // The connection of the request that this thread is answering.
  [[nodiscard]] static Connection& connection();
  // After this answer the connection is closed: what the client sent has not been read to its end.
  static void hang_up();

  // Requests that are being answered.
  [[nodiscard]] int busy() const { return busy_; }
  // Closes all connections under the hands of those who use them.
  void cut_off();

 private:
  bool process_and_close_socket(socket_t socket) override;

  std::atomic<int> waiting_{0};  // clients without a thread
  std::atomic<int> busy_{0};
  std::mutex mutex_;
  std::set<socket_t> open_;
};

}  // namespace qdelta::serve
