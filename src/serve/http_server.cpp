#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "core/error.h"
#include "io/warn.h"
#include "serve/http_connection.h"

namespace qdelta::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::size_t kSpare = 64;               // connections beyond the limit, for urgent answers
constexpr std::chrono::milliseconds kPause{50};  // before another try to accept, where no more files can be opened
constexpr rlim_t kOtherFiles = 64;

// As many open files as the connections need, where the system lets us.
void raise_file_limit(std::size_t connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = connections + kSpare + kOtherFiles;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

}  // namespace

class HttpServer::Implementation {
 public:
  Implementation(const HttpOptions& options, Routes routes)
      : shared_(options, std::move(routes)),
        acceptor_(asio::make_strand(shared_.io)),
        pause_(acceptor_.get_executor()) {
    raise_file_limit(options.max_connections);
    boost::system::error_code error;
    tcp::resolver resolver(shared_.io);
    const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
    const auto check = [&] {
      if (error) fail(Status::io, "cannot listen on {} port {}: {}", options.host, options.port, error.message());
    };
    check();
    const tcp::endpoint where = found.begin()->endpoint();
    acceptor_.open(where.protocol(), error);
    check();
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    acceptor_.bind(where, error);
    check();
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    check();
    port_ = acceptor_.local_endpoint().port();
  }
  ~Implementation() {
    stop();
    shared_.workers.join();
  }

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] int busy() const { return shared_.busy; }

  void run() {
    accept();
    std::vector<std::thread> threads;
    for (int i = 1; i < shared_.options.threads; ++i) threads.emplace_back([this] { run_io(); });
    run_io();
    for (std::thread& thread : threads) thread.join();
    shared_.workers.join();
    // What workers left to do for connections that are closed.
    shared_.io.restart();
    shared_.io.poll();
  }

  void stop() {
    if (shared_.stopping.exchange(true)) return;
    asio::post(acceptor_.get_executor(), [this] {
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      for (const auto& connection : open_connections()) connection->close();
    });
  }

 private:
  // What a handler throws (there is no memory, as a rule) ends its connection and nobody else's.
  void run_io() {
    while (true) {
      try {
        shared_.io.run();
        return;
      } catch (const std::exception& error) {
        warn(fmt::format("a connection was given up: {}", error.what()));
      }
    }
  }

  // They may end at any time, and then take the mutex themselves: nobody may hold it who lets go of one.
  [[nodiscard]] std::vector<std::shared_ptr<HttpConnection>> open_connections() {
    std::vector<std::shared_ptr<HttpConnection>> all;
    const std::lock_guard lock(shared_.mutex);
    for (HttpConnection* connection : shared_.open) {
      if (const auto alive = connection->weak_from_this().lock()) all.push_back(alive);
    }
    return all;
  }

  void accept() {
    acceptor_.async_accept(asio::make_strand(shared_.io), [this](boost::system::error_code error, tcp::socket socket) {
      if (shared_.stopping || error == asio::error::operation_aborted) return;
      if (error) {  // as a rule too many open files
        make_room(false);
        pause_.expires_after(kPause);
        pause_.async_wait([this](boost::system::error_code cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      try {
        take(std::move(socket));
      } catch (const std::exception& no_memory) {  // others are waited for all the same
        warn(fmt::format("a connection was not taken: {}", no_memory.what()));
      }
      accept();
    });
  }

  void take(tcp::socket socket) {
    std::size_t open = 0;
    {
      const std::lock_guard lock(shared_.mutex);
      open = shared_.open.size();
    }
    bool spare = false;
    if (open >= shared_.options.max_connections) spare = !make_room(false);
    if (spare && open >= shared_.options.max_connections + kSpare) make_room(true);
    std::make_shared<HttpConnection>(shared_, std::move(socket), spare)->start();
  }

  // Closes the connection that has waited longest for a request, or for the rest of its head. Among spare ones any may
  // go. False where there is none.
  bool make_room(bool spare) {
    std::shared_ptr<HttpConnection> oldest;
    const auto rank = [](const HttpConnection& connection) {
      return std::pair(connection.phase() != HttpConnection::Phase::waiting, connection.since());
    };
    for (const auto& connection : open_connections()) {
      const bool may_go =
          connection->phase() == HttpConnection::Phase::waiting || connection->phase() == HttpConnection::Phase::head;
      if (connection->spare() != spare || (!may_go && !spare)) continue;
      if (!oldest || rank(*connection) < rank(*oldest)) oldest = connection;
    }
    if (oldest) oldest->close();
    return oldest != nullptr;
  }

  HttpShared shared_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  int port_ = 0;
};

HttpServer::HttpServer(const HttpOptions& options, Routes routes)
    : implementation_(std::make_unique<Implementation>(options, std::move(routes))) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return implementation_->port(); }
void HttpServer::run() { implementation_->run(); }
void HttpServer::stop() { implementation_->stop(); }
int HttpServer::busy() const { return implementation_->busy(); }

}  // namespace qdelta::serve
