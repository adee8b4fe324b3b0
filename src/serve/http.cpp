#include "serve/http.h"

#include <unistd.h>

#include <climits>
#include <functional>
#include <utility>

namespace qdelta::serve {
namespace {

constexpr int kIdle = 60'000;     // milliseconds that a connection is kept for another request
constexpr int kHesitation = 500;  // and that one may take to begin with its first while others wait for their turn
constexpr int kLinger = 1'000;    // milliseconds that a client may go on sending what nobody reads
constexpr int kTick = 20;         // between looks at whether it still should be

struct Current {
  Connection* connection = nullptr;
  bool hang_up = false;
};
thread_local Current current;

class Workers : public httplib::TaskQueue {
 public:
  Workers(size_t threads, std::atomic<int>& waiting) : pool_(threads), waiting_(waiting) {}
  void enqueue(std::function<void()> task) override {
    ++waiting_;
    pool_.enqueue([this, task = std::move(task)] {
      --waiting_;
      task();
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  httplib::ThreadPool pool_;
  std::atomic<int>& waiting_;
};

}  // namespace

Http::Http(size_t threads) {
  new_task_queue = [this, threads] { return new Workers(threads, waiting_); };
  // Not the library's own choice, which lets two servers share a port without a word.
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  // What the library tells clients about connections, whose keeping is our own matter.
  set_keep_alive_timeout(kIdle / 1000);
  set_keep_alive_max_count(INT_MAX);
  set_post_routing_handler([](const httplib::Request&, httplib::Response& response) {
    if (!current.hang_up) return;
    response.headers.erase("Keep-Alive");
    response.headers.erase("Connection");
    response.set_header("Connection", "close");
  });
}

Connection& Http::connection() { return *current.connection; }
void Http::hang_up() { current.hang_up = true; }

void Http::cut_off() {
  const std::lock_guard lock(mutex_);
  for (const socket_t socket : open_) ::shutdown(socket, SHUT_RDWR);
}

bool Http::process_and_close_socket(socket_t socket) {
  {
    const std::lock_guard lock(mutex_);
    open_.insert(socket);
  }
  Connection connection(socket);
  current = {&connection, false};
  bool good = true;
  bool first = true;
  while (good && !current.hang_up) {
    // The library takes the server's socket away when it stops. A client that has just come may still ask.
    int idle = 0;
    bool asked = connection.wait_for_request(kTick);
    while (!asked && connection.alive() && svr_sock_ != INVALID_SOCKET && idle < kIdle &&
           (waiting_ == 0 || (first && idle < kHesitation))) {
      idle += kTick;
      asked = connection.wait_for_request(kTick);
    }
    if (!asked) break;
    first = false;
    bool closed = false;
    ++busy_;
    good = process_request(connection, svr_sock_ == INVALID_SOCKET, closed, nullptr) && !closed;
    --busy_;
  }
  // A client that is still sending would lose the answer if this end just closed.
  ::shutdown(socket, SHUT_WR);
  if (current.hang_up) connection.drain(kLinger);
  current = {};
  const std::lock_guard lock(mutex_);
  open_.erase(socket);
  ::close(socket);
  return good;
}

}  // namespace qdelta::serve
