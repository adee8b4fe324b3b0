// One connection: reads a request, has it answered, and so on. For http_connection.cpp and http_server.cpp alone, since
// Boost.Beast takes long to compile.
//
// Everything happens in the connection's turn (a strand): what the network reports, what handlers post, and the clock.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "serve/http.h"
#include "serve/http_text.h"

namespace qdelta::serve {

class HttpConnection;

// What the connections of a server share.
struct HttpShared {
  HttpOptions options;
  Routes routes;
  boost::asio::io_context io;
  boost::asio::thread_pool workers;
  std::atomic<std::size_t> body_bytes{0};  // announced by all clients together
  std::atomic<int> busy{0};                // requests that are being answered
  std::atomic<bool> stopping{false};
  std::mutex mutex;
  std::set<HttpConnection*> open;

  HttpShared(const HttpOptions& all_options, Routes all_routes)
      : options(all_options),
        routes(std::move(all_routes)),
        io(all_options.threads),
        workers(static_cast<std::size_t>(all_options.workers)) {}
};

class HttpConnection : public Exchange, public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Phase { waiting, head, body, answering };

  // `spare`: there are too many; only urgent answers.
  HttpConnection(HttpShared& shared, boost::asio::ip::tcp::socket socket, bool spare);
  ~HttpConnection() override;

  void start();
  // From any thread.
  void close();
  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] bool spare() const { return spare_; }
  [[nodiscard]] Clock::time_point since() const { return Clock::time_point(Clock::duration(since_.load())); }

  void answer(HttpAnswer answer) override;
  void stream(HttpAnswer head, Source source) override;
  void more() override;
  void post(std::function<void()> action) override;
  void work(std::function<void()> action) override;
  void on_gone(std::function<void()> action) override;
  void note(std::string members) override { note_ = std::move(members); }

 private:
  using Error = boost::beast::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void enter(Phase phase);
  void wait_for_request();
  void read_head();
  void got_head(Error error);
  // So many bytes instead of those before. False where the request is refused; then it has been answered.
  bool reserve_body(std::size_t bytes);
  [[nodiscard]] std::size_t max_body() const;
  void refuse_body();
  void release_body();
  void say_continue();
  void read_body();
  void read_chunks();
  void got_body(Error error);
  void handle();
  // Answers and hangs up: where the next request would begin is not known.
  void refuse(int status, const std::string& why);
  void too_slow();
  void send_answer(HttpAnswer answer);
  void send_head(HttpAnswer head, Source source);
  void ask_source();
  [[nodiscard]] bool add_piece();
  // Sends out_ from sent_ on, a bounded piece at a time.
  void write();
  void wrote(Error error, std::size_t bytes);
  void answer_sent();
  void watch();
  void client_gone();
  void record(int status);
  void hang_up();
  void drain();
  void shut();

  HttpShared& shared_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer watch_;
  std::optional<Parser> parser_;
  HttpRequest request_;
  std::string remote_, note_, out_;
  std::size_t sent_ = 0, reserved_ = 0, total_sent_ = 0, drained_ = 0;
  Source source_;
  std::shared_ptr<const void> held_;  // with out_
  std::function<void()> gone_;
  Clock::time_point begin_, write_begin_;
  Clock::duration behind_{};  // how much longer its pieces have taken than piece_time each
  Clock::time_point drain_end_;
  Ending ending_ = Ending::length;
  int status_ = 0;
  bool keep_alive_ = false, modern_ = true, first_ = true, answering_ = false, answered_ = false, writing_ = false,
       last_piece_ = false, hanging_up_ = false, head_only_ = false;
  const bool spare_;
  std::atomic<Phase> phase_{Phase::waiting};
  std::atomic<Clock::rep> since_{0};
};

}  // namespace qdelta::serve
