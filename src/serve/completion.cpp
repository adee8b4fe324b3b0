#include "serve/completion.h"

#include <fmt/format.h>

#include <utility>

#include "serve/json_text.h"

namespace qdelta::serve {
namespace {

// Of a stream. Scores take several times as much memory as text, and that is not counted (request_sequences.h).
constexpr std::size_t kLongPiece = 128U << 10U;

}  // namespace

Completion::Completion(std::shared_ptr<Exchange> exchange, std::shared_ptr<Job> job, Answer answer,
                       std::unique_ptr<MemoryBudget::Share> memory, Metrics& metrics, CompletionOptions options)
    : exchange_(std::move(exchange)),
      job_(std::move(job)),
      answer_(std::move(answer)),
      memory_(std::move(memory)),
      metrics_(metrics),
      options_(std::move(options)) {}

// The job knows the completion only weakly: whoever answers keeps it, and a client that has gone lets it go.
void Completion::follow() {
  job_->on_news([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    if (self->streaming_) return self->exchange_->more();
    self->exchange_->post([self] {
      self->has_news_ = true;
      if (!self->options_.streamed) return self->collect();
      if (self->accepted_) self->begin_stream();
    });
  });
}

void Completion::begin() {
  const auto self = shared_from_this();
  exchange_->on_gone([self] { self->job_->cancel(); });
  if (!options_.streamed) return;
  // News may have come already, but who goes away during a stream must be noticed: that first.
  exchange_->post([self] {
    self->accepted_ = true;
    if (self->has_news_) self->begin_stream();
  });
}

void Completion::begin_stream() {
  if (streaming_.exchange(true)) return exchange_->more();
  HttpAnswer head{.status = 200,
                  .type = "text/event-stream",
                  .body = {},
                  .headers = {{"Cache-Control", "no-cache"}, cached_tokens_header()}};
  exchange_->stream(std::move(head), [self = shared_from_this()] { return self->next_events(); });
}

std::pair<std::string, std::string> Completion::cached_tokens_header() const {
  return {"Qdelta-Cached-Tokens", std::to_string(job_->cached_tokens())};
}

Exchange::Piece Completion::next_events() {
  Exchange::Piece piece;
  if (to_send_.empty()) {
    for (Update& update : job_->take()) put_in_parts(std::move(update), to_send_);
  }
  while (!to_send_.empty()) {
    if (piece.data.size() >= kLongPiece) return piece;  // the rest is asked for when this has been sent
    note_first_token();
    const std::size_t sequence = to_send_.front().sequence;
    if (answer_.add_events(std::move(to_send_.front()), piece.data)) job_->stop(sequence);
    to_send_.pop_front();
  }
  if (const std::string why = job_->failure(); !why.empty() && !answer_.complete()) {
    piece.data += event(json_text(ApiError(job_->failure_status(), why).body()));
    piece.end = true;
  } else if (complete() && not_kept_) {
    piece.data += event(json_text(not_kept_->body()));
    piece.end = true;
  } else if (complete()) {
    answer_.set_cached_tokens(job_->cached_tokens());
    piece.data += answer_.last_events();
    piece.end = true;
    finished();
  }
  return piece;
}

void Completion::collect() {
  if (answered_) return;
  for (Update& update : job_->take()) {
    note_first_token();
    const std::size_t sequence = update.sequence;
    if (answer_.add(std::move(update))) job_->stop(sequence);
  }
  if (answer_.complete()) {
    if (complete()) answer_whole();
    return;
  }
  const std::string why = job_->failure();
  if (why.empty()) return;
  answered_ = true;
  const int status = job_->failure_status();
  exchange_->answer({status, "application/json", json_text(ApiError(status, why).body()), {}});
}

bool Completion::complete() {
  if (!answer_.complete()) return false;
  if (options_.keep_state == nullptr || not_kept_ || !kept_.empty()) return true;
  if (!std::exchange(keeping_, true)) keep_state();
  return false;
}

void Completion::keep_state() {
  exchange_->work([self = shared_from_this()] {
    std::string kept;
    std::optional<ApiError> error;
    try {
      kept = self->options_.keep_state();
    } catch (const ApiError& refused) {
      error = refused;
    } catch (const std::exception& failed) {
      error.emplace(500, failed.what());
    }
    self->exchange_->post([self, kept = std::move(kept), error = std::move(error)] {
      self->kept_ = kept;
      self->not_kept_ = error;
      self->answer_.set_state(kept);
      if (self->options_.streamed) return self->exchange_->more();
      self->collect();
    });
  });
}

void Completion::answer_whole() {
  answered_ = true;
  if (not_kept_) return exchange_->answer({not_kept_->status(), "application/json", json_text(not_kept_->body()), {}});
  answer_.set_cached_tokens(job_->cached_tokens());
  finished();
  if (options_.only_state) return exchange_->answer({200, "application/json", kept_, {}});
  const Headers headers{cached_tokens_header()};
  std::string begin = answer_.next_part();
  std::string next = answer_.next_part();
  if (next.empty()) return exchange_->answer({200, "application/json", std::move(begin), headers});
  begin += next;
  exchange_->stream({200, "application/json", {}, headers},
                    [self = shared_from_this(), begin = std::move(begin)]() mutable {
                      Exchange::Piece piece;
                      piece.data = begin.empty() ? self->answer_.next_part() : std::exchange(begin, {});
                      piece.end = piece.data.empty();
                      return piece;
                    });
}

void Completion::note_first_token() {
  if (first_token_ < 0) first_token_ = std::chrono::duration<double>(Clock::now() - begin_).count();
}

void Completion::finished() {
  if (!options_.only_state)
    metrics_.completed(std::chrono::duration<double>(Clock::now() - begin_).count(), first_token_);
  exchange_->note(fmt::format(R"("prompt_tokens":{},"completion_tokens":{},"first_token_s":{:.6f}{})",
                              answer_.prompt_tokens(), answer_.completion_tokens(), first_token_, options_.note));
}

}  // namespace qdelta::serve
