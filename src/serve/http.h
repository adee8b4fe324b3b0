// HTTP/1.1 for the server: connections, limits and deadlines. What is asked and answered is somebody else's business.
//
// A few threads serve any number of connections. Whatever a client does or leaves undone, it holds its connection for a
// bounded time and takes a bounded amount of memory:
//
//   a request's head   at most 64 KiB (431); after head_time it is dropped
//   its body           at most max_body (413), those of all clients together max_bodies (503), where such of 64 KiB and
//                      less do not count, and one in chunks as it arrives; after body_time dropped
//   an answer          a piece of at most 64 KiB must be taken within write_time, and on average within piece_time: a
//                      client that is slow_time behind that is dropped. The time between pieces does not count
//   connections        at most max_connections: those that wait for a request give way to new ones, the oldest first;
//                      where none does, new ones may still ask for what `Routes::early` answers as urgent
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qdelta::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path, query, remote;
  Headers headers;  // names in lower case
  std::string body;
  bool has_body = false;  // whether one is announced; a length of 0 counts

  // The value of a header; empty where there is none.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

struct HttpAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  Headers headers = {};
  std::shared_ptr<const void> held = {};  // let go of when all has been sent
};

// One request that is to be answered, once, by `answer` or `stream`. All functions may be called from any thread.
class Exchange {
 public:
  // What a stream sends next. Nothing, and not the end: the source is asked again after `more`.
  struct Piece {
    std::string data;
    bool end = false;
  };
  using Source = std::function<Piece()>;

  virtual ~Exchange() = default;
  virtual void answer(HttpAnswer answer) = 0;
  // An answer whose body comes in pieces. The source is asked for the first at once, which goes with the head, and for
  // the next one when the last has been sent.
  virtual void stream(HttpAnswer head, Source source) = 0;
  virtual void more() = 0;
  // Runs something in the connection's turn, after what was posted before, never two at once.
  virtual void post(std::function<void()> action) = 0;
  // Runs something that may take its time, on a thread for that.
  virtual void work(std::function<void()> action) = 0;
  // Called once in the connection's turn where the client goes away before the answer's end.
  virtual void on_gone(std::function<void()> action) = 0;
  // JSON members ("\"tokens\": 5") for the log's line of this request. In the connection's turn only.
  virtual void note(std::string members) = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any that is free
  int threads = 2, workers = 2;
  std::size_t max_connections = 2048;
  std::size_t max_body = std::size_t{8} << 20U;  // of any request; see Routes::max_body
  std::size_t max_bodies = std::size_t{256} << 20U;
  Headers always = {};  // in every answer
  std::chrono::milliseconds head_time{10'000}, body_time{60'000}, write_time{30'000}, idle_time{60'000};
  std::chrono::milliseconds piece_time{1'000}, slow_time{60'000};
};

// How a request ended.
struct HttpRecord {
  std::string method, path, remote, note;
  int status = 0;  // 499: the client had gone before the answer's end
  double seconds = 0;
  std::size_t sent = 0;  // bytes
};

struct Routes {
  // With the head, on a thread that others share: what can be answered at once, or is refused without its body. An
  // answer is urgent if clients may have it although there are too many of them.
  struct Early {
    HttpAnswer answer;
    bool urgent = false;
  };
  std::function<std::optional<Early>(const HttpRequest& head)> early;
  // How large the body of a request may be that is not answered early.
  std::function<std::size_t(const HttpRequest& head)> max_body;
  // With the body, on a thread that may take its time.
  std::function<void(HttpRequest request, const std::shared_ptr<Exchange>& exchange)> handle;
  // For errors of the protocol: the body of an answer with this status.
  std::function<std::string(int status, const std::string& why)> error;
  std::function<void(const HttpRecord& record)> ended;
};

class HttpServer {
 public:
  // Binds; throws where that is not possible.
  HttpServer(const HttpOptions& options, Routes routes);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] int port() const;
  // Serves until `stop`, which closes all connections.
  void run();
  void stop();
  // Requests that are being answered.
  [[nodiscard]] int busy() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace qdelta::serve
