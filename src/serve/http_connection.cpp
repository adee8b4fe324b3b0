#include "serve/http_connection.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <utility>

namespace qdelta::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr std::size_t kMaxHead = 64U << 10U;
constexpr std::size_t kSmallBody = 64U << 10U;
constexpr std::uint64_t kMostAtOnce = 64U << 10U;  // of a body
constexpr std::size_t kPiece = 64U << 10U;         // of an answer
constexpr int kClientGone = 499;
constexpr std::chrono::milliseconds kWatch{500};    // how often to see whether the client is still there
constexpr std::chrono::milliseconds kLinger{1000};  // for a client to stop sending what nobody reads
constexpr std::size_t kMostDrained = 1U << 20U;

std::string lower(beast::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

HttpRequest head_of_request(const http::request<http::string_body>& message, std::string remote) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  std::string target(message.target());
  // Proxies may ask for a whole address, http://HOST/PATH.
  if (constexpr std::string_view kScheme = "http://"; target.starts_with(kScheme)) {
    target.erase(0, std::min(target.find('/', kScheme.size()), target.size()));
    if (!target.starts_with('/')) target.insert(0, 1, '/');
  }
  const std::size_t mark = target.find('?');
  request.path = target.substr(0, mark);
  if (mark != std::string::npos) request.query = target.substr(mark + 1);
  request.remote = std::move(remote);
  for (const auto& field : message)
    request.headers.emplace_back(lower(field.name_string()), std::string(field.value()));
  request.has_body = !request.header("content-length").empty() || !request.header("transfer-encoding").empty();
  return request;
}

}  // namespace

HttpConnection::HttpConnection(HttpShared& shared, asio::ip::tcp::socket socket, bool spare)
    : shared_(shared),
      stream_(std::move(socket)),
      buffer_(2 * kMaxHead),
      watch_(stream_.get_executor()),
      spare_(spare) {
  beast::error_code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  stream_.socket().set_option(asio::socket_base::keep_alive(true), ignored);
  const auto where = stream_.socket().remote_endpoint(ignored);
  if (!ignored) remote_ = where.address().to_string();
  since_ = Clock::now().time_since_epoch().count();
  const std::lock_guard lock(shared_.mutex);
  shared_.open.insert(this);
}

HttpConnection::~HttpConnection() {
  if (answering_) --shared_.busy;
  release_body();
  const std::lock_guard lock(shared_.mutex);
  shared_.open.erase(this);
}

void HttpConnection::start() {
  asio::dispatch(stream_.get_executor(), [self = shared_from_this()] { self->wait_for_request(); });
}

void HttpConnection::close() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] { self->shut(); });
}

void HttpConnection::enter(Phase phase) {
  phase_ = phase;
  since_ = Clock::now().time_since_epoch().count();
}

// The first request must begin as soon as any head must end.
void HttpConnection::wait_for_request() {
  enter(Phase::waiting);
  if (buffer_.size() > 0) return read_head();
  stream_.expires_after(first_ ? shared_.options.head_time : shared_.options.idle_time);
  stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](Error error, std::size_t bytes) {
    if (error) return self->shut();
    self->buffer_.commit(bytes);
    self->read_head();
  });
}

void HttpConnection::read_head() {
  enter(Phase::head);
  first_ = false;
  begin_ = Clock::now();
  request_ = {};
  note_.clear();
  answered_ = answering_ = last_piece_ = head_only_ = false;
  total_sent_ = 0;
  behind_ = {};
  keep_alive_ = false;
  parser_.emplace();
  parser_->header_limit(kMaxHead);
  parser_->body_limit(shared_.options.max_body);
  stream_.expires_after(shared_.options.head_time);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](Error error, std::size_t /*bytes*/) { self->got_head(error); });
}

void HttpConnection::got_head(Error error) {
  if (error == http::error::end_of_stream || error == asio::error::operation_aborted) return shut();
  request_ = head_of_request(parser_->get(), remote_);
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return refuse(431, fmt::format("the head of the request is larger than {} bytes", kMaxHead));
  }
  if (error == http::error::body_limit) return refuse_body();
  if (error == beast::error::timeout) return too_slow();
  if (error.category() == make_error_code(http::error::bad_method).category() && error) {
    return refuse(400, fmt::format("the request cannot be read: {}", error.message()));
  }
  if (error) return shut();
  const unsigned version = parser_->get().version();
  if (version != 10 && version != 11) return refuse(400, "the version of HTTP must be 1.0 or 1.1");
  modern_ = version == 11;
  if (const std::optional<Refusal> refusal = refuse_framing(request_)) return refuse(refusal->status, refusal->why);
  const bool empty_body = !request_.has_body || request_.header("content-length") == "0";
  keep_alive_ = parser_->keep_alive() && empty_body && !shared_.stopping && !spare_;
  if (request_.method == "HEAD") {
    head_only_ = true;
    request_.method = "GET";
  }
  std::optional<Routes::Early> early = shared_.routes.early(request_);
  if (spare_ && (!early || !early->urgent)) {
    return answer({503,
                   "application/json",
                   shared_.routes.error(503, "there are too many connections: try again later"),
                   {{"Retry-After", "1"}}});
  }
  if (early) return answer(std::move(early->answer));
  if (parser_->content_length().value_or(0) > max_body()) return refuse_body();
  parser_->body_limit(max_body());  // of one that comes in chunks
  if (!reserve_body(static_cast<std::size_t>(parser_->content_length().value_or(0)))) return;
  keep_alive_ = parser_->keep_alive() && !shared_.stopping;
  if (lower(parser_->get()[http::field::expect]) == "100-continue") return say_continue();
  read_body();
}

std::size_t HttpConnection::max_body() const {
  return std::min(shared_.options.max_body, shared_.routes.max_body(request_));
}

void HttpConnection::refuse_body() { refuse(413, fmt::format("the body is larger than {} bytes", max_body())); }

// Small ones always find room, or a few clients that announce large ones and send nothing would keep everybody from
// being heard.
bool HttpConnection::reserve_body(std::size_t bytes) {
  if (bytes <= std::max(kSmallBody, reserved_)) return true;
  const std::size_t more = bytes - reserved_;
  // What is refused must not count for a moment: others would be refused with it.
  std::size_t taken = shared_.body_bytes;
  while (taken + more <= std::max(shared_.options.max_bodies, bytes)) {
    if (!shared_.body_bytes.compare_exchange_weak(taken, taken + more)) continue;
    reserved_ = bytes;
    return true;
  }
  keep_alive_ = false;
  release_body();
  answer({503,
          "application/json",
          shared_.routes.error(503, "too much is being sent at once: try again later"),
          {{"Retry-After", "1"}}});
  return false;
}

void HttpConnection::release_body() { shared_.body_bytes -= std::exchange(reserved_, 0); }

void HttpConnection::say_continue() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(kContinue.data(), kContinue.size()),
                    [self = shared_from_this()](Error error, std::size_t /*bytes*/) {
                      if (error) return self->shut();
                      self->read_body();
                    });
}

void HttpConnection::read_body() {
  enter(Phase::body);
  stream_.expires_after(shared_.options.body_time);
  if (parser_->chunked()) return read_chunks();
  // Beast reads as much at once as there is room for, else 4 KiB: each time a call of the system, a timer and a wait.
  const auto rest = parser_->content_length_remaining().value_or(0);
  buffer_.reserve(static_cast<std::size_t>(std::min<std::uint64_t>(rest, kMostAtOnce)));
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](Error error, std::size_t /*bytes*/) { self->got_body(error); });
}

// Nobody has said how large it will be: where there is more than a small one, there is room for what the next read may
// bring, twice as much each time.
void HttpConnection::read_chunks() {
  std::string& body = parser_->get().body();
  if (body.size() > kSmallBody && std::min(body.size() + kMostAtOnce, max_body()) > reserved_) {
    const std::size_t room = std::min(std::max(body.size() + kMostAtOnce, 2 * reserved_), max_body());
    if (!reserve_body(room)) return;
    body.reserve(room);
  }
  http::async_read_some(stream_, buffer_, *parser_, [self = shared_from_this()](Error error, std::size_t /*bytes*/) {
    if (error || self->parser_->is_done()) return self->got_body(error);
    self->read_chunks();
  });
}

void HttpConnection::got_body(Error error) {
  if (error == asio::error::operation_aborted) return shut();
  if (error == http::error::body_limit) return refuse_body();
  if (error == beast::error::timeout) return too_slow();
  if (error) return refuse(400, "the body ends too early, or its chunks cannot be read");
  request_.body = std::move(parser_->get().body());
  buffer_.shrink_to_fit();  // there may be many connections that wait
  handle();
}

void HttpConnection::handle() {
  answering_ = true;
  ++shared_.busy;
  enter(Phase::answering);
  stream_.expires_never();
  watch();
  HttpRequest request = std::exchange(request_, {});
  request_.method = request.method;  // for the record
  request_.path = request.path;
  asio::post(shared_.workers, [self = shared_from_this(), request = std::move(request),
                               reserved = std::exchange(reserved_, 0)]() mutable {
    const std::shared_ptr<Exchange> exchange = self;
    try {
      self->shared_.routes.handle(std::move(request), exchange);
    } catch (const std::exception& error) {
      exchange->answer({500, "application/json", self->shared_.routes.error(500, error.what()), {}});
    }
    self->shared_.body_bytes -= reserved;
  });
}

void HttpConnection::post(std::function<void()> action) {
  asio::post(stream_.get_executor(), [self = shared_from_this(), action = std::move(action)] { action(); });
}

void HttpConnection::work(std::function<void()> action) {
  asio::post(shared_.workers, [self = shared_from_this(), action = std::move(action)] { action(); });
}

void HttpConnection::on_gone(std::function<void()> action) {
  post([this, action = std::move(action)]() mutable {
    if (hanging_up_) return action();
    if (!answered_) gone_ = std::move(action);
  });
}

void HttpConnection::refuse(int status, const std::string& why) {
  keep_alive_ = false;
  release_body();
  send_answer({status, "application/json", shared_.routes.error(status, why), {}});
}

// Nobody is told: with the time the stream has been closed.
void HttpConnection::too_slow() {
  record(408);
  shut();
}

void HttpConnection::answer(HttpAnswer answer) {
  asio::dispatch(stream_.get_executor(), [self = shared_from_this(), answer = std::move(answer)]() mutable {
    self->send_answer(std::move(answer));
  });
}

void HttpConnection::stream(HttpAnswer head, Source source) {
  asio::dispatch(stream_.get_executor(),
                 [self = shared_from_this(), head = std::move(head), source = std::move(source)]() mutable {
                   self->send_head(std::move(head), std::move(source));
                 });
}

void HttpConnection::send_answer(HttpAnswer answer) {
  if (answered_ || hanging_up_) return;
  answered_ = true;
  keep_alive_ = keep_alive_ && !shared_.stopping;
  status_ = answer.status;
  source_ = nullptr;
  last_piece_ = true;
  std::ranges::copy(shared_.options.always, std::back_inserter(answer.headers));
  out_ = head_of(answer, Ending::length, keep_alive_);
  if (!head_only_) out_ += answer.body;
  held_ = std::move(answer.held);
  sent_ = 0;
  write();
}

void HttpConnection::send_head(HttpAnswer head, Source source) {
  if (answered_ || hanging_up_) return;
  answered_ = true;
  ending_ = modern_ ? Ending::chunks : Ending::close;
  keep_alive_ = keep_alive_ && modern_ && !shared_.stopping;
  status_ = head.status;
  source_ = head_only_ ? nullptr : std::move(source);
  last_piece_ = head_only_;
  std::ranges::copy(shared_.options.always, std::back_inserter(head.headers));
  out_ = head_of(head, ending_, keep_alive_);
  sent_ = 0;
  if (source_ && !add_piece()) return client_gone();  // what there is already goes with the head
  write();
}

void HttpConnection::more() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    if (!self->writing_ && !self->hanging_up_) self->ask_source();
  });
}

void HttpConnection::ask_source() {
  if (!source_ || last_piece_) return;
  out_.clear();
  sent_ = 0;
  if (!add_piece()) return client_gone();
  if (out_.empty() && !last_piece_) return;
  write();
}

// False where the source fails: nothing can be said any more, and the client must not take what it has for the whole.
bool HttpConnection::add_piece() {
  Piece piece;
  try {
    piece = source_();
  } catch (const std::exception&) {
    return false;
  }
  if (!piece.data.empty()) out_ += ending_ == Ending::chunks ? chunk_of(piece.data) : std::move(piece.data);
  if (piece.end) {
    if (ending_ == Ending::chunks) out_ += "0\r\n\r\n";
    last_piece_ = true;
  }
  return true;
}

// Within write_time, and not so late that the client is more than slow_time behind. Short pieces have as long as
// others: what a busy machine takes to hear that one has been sent is not the client's fault.
void HttpConnection::write() {
  writing_ = true;
  write_begin_ = Clock::now();
  const std::size_t bytes = std::min(kPiece, out_.size() - sent_);
  const HttpOptions& options = shared_.options;
  const Clock::duration rest = options.slow_time + options.piece_time - behind_;
  stream_.expires_at(write_begin_ + std::min<Clock::duration>(options.write_time, rest));
  asio::async_write(stream_, asio::buffer(out_.data() + sent_, bytes),
                    [self = shared_from_this()](Error error, std::size_t written) { self->wrote(error, written); });
}

void HttpConnection::wrote(Error error, std::size_t bytes) {
  writing_ = false;
  if (hanging_up_) return;
  stream_.expires_never();
  behind_ = std::max(Clock::duration::zero(), behind_ + (Clock::now() - write_begin_) - shared_.options.piece_time);
  sent_ += bytes;
  total_sent_ += bytes;
  if (error) return client_gone();
  if (sent_ < out_.size()) return write();
  if (last_piece_) return answer_sent();
  ask_source();
}

void HttpConnection::answer_sent() {
  record(status_);
  gone_ = nullptr;
  source_ = nullptr;
  std::string().swap(out_);
  held_ = nullptr;
  if (!keep_alive_) return hang_up();
  wait_for_request();
}

void HttpConnection::record(int status) {
  if (answering_) {
    answering_ = false;
    --shared_.busy;
    watch_.cancel();
  }
  if (request_.method.empty() && status < 400) return;
  shared_.routes.ended({request_.method, request_.path, remote_, note_, status,
                        std::chrono::duration<double>(Clock::now() - begin_).count(), total_sent_});
}

// A client that has stopped sending counts as gone while it waits for an answer, whatever it has sent before.
void HttpConnection::watch() {
  watch_.expires_after(kWatch);
  watch_.async_wait([self = shared_from_this()](Error error) {
    if (error || !self->answering_ || self->hanging_up_) return;
    pollfd wanted{self->stream_.socket().native_handle(), POLLRDHUP, 0};
    if (::poll(&wanted, 1, 0) > 0 && !self->last_piece_) return self->client_gone();
    self->watch();
  });
}

void HttpConnection::client_gone() {
  if (hanging_up_) return;
  record(kClientGone);
  shut();
}

void HttpConnection::shut() {
  if (answering_) record(kClientGone);
  hanging_up_ = true;
  watch_.cancel();
  source_ = nullptr;
  if (auto gone = std::exchange(gone_, nullptr)) gone();
  Error ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.close();
}

// A client that is still sending would lose the answer if this end just closed.
void HttpConnection::hang_up() {
  hanging_up_ = true;
  Error error;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, error);
  if (error) return shut();
  drain_end_ = Clock::now() + kLinger;
  drain();
}

void HttpConnection::drain() {
  buffer_.consume(buffer_.size());
  stream_.expires_at(drain_end_);
  stream_.async_read_some(buffer_.prepare(16384), [self = shared_from_this()](Error error, std::size_t bytes) {
    self->drained_ += bytes;
    if (error || self->drained_ > kMostDrained) return self->shut();
    self->drain();
  });
}

}  // namespace qdelta::serve
