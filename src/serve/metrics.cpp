#include "serve/metrics.h"

#include <fmt/format.h>

#include <iterator>

namespace qdelta::serve {

void Metrics::Histogram::add(double seconds) {
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    if (seconds <= kBounds[i]) ++within_[i];
  }
  ++count_;
  sum_ += seconds;
}

void Metrics::Histogram::write(const char* name, const char* help, std::string& out) const {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    fmt::format_to(to, "{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], within_[i]);
  }
  fmt::format_to(to, "{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count_, sum_);
}

void Metrics::completed(double seconds, double first_token) {
  const std::lock_guard lock(mutex_);
  completion_.add(seconds);
  if (first_token >= 0) first_token_.add(first_token);
}

void Metrics::answered(int status) {
  const std::lock_guard lock(mutex_);
  ++by_status_[status];
}

std::string Metrics::text() const {
  std::string out;
  const auto put = [&out](const char* name, const char* type, const char* help, auto value) {
    fmt::format_to(std::back_inserter(out), "# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
  };
  put("qdelta_queue_length", "gauge", "Requests that wait for a place in the batch.", queued.load());
  put("qdelta_running_sequences", "gauge", "Sequences in the batch.", running.load());
  put("qdelta_prompt_tokens_total", "counter", "Tokens of prompts that were read.", prompt_tokens.load());
  put("qdelta_prompt_reads_total", "counter", "Times that prompts were read further, some of them together.",
      prompt_reads.load());
  put("qdelta_generated_tokens_total", "counter", "Tokens that were generated.", generated_tokens.load());
  put("qdelta_decode_steps_total", "counter", "Steps of the batch, one token of every sequence.", decode_steps.load());
  put("qdelta_cached_tokens_total", "counter", "Tokens of prompts that were not read again.", cached_tokens.load());
  put("qdelta_cache_lookups_total", "counter", "Prompts that were looked up in the cache.", cache_lookups.load());
  put("qdelta_cache_hits_total", "counter", "Prompts of which the cache had a beginning.", cache_hits.load());
  put("qdelta_cache_evictions_total", "counter", "Snapshots that made room for others.", cache_evictions.load());
  put("qdelta_cache_snapshots", "gauge", "Snapshots in the cache.", cache_snapshots.load());
  put("qdelta_cache_bytes", "gauge", "Memory that they take.", cache_bytes.load());
  put("qdelta_cache_files", "gauge", "Snapshots on disk.", cache_files.load());
  put("qdelta_cache_file_bytes", "gauge", "What they take there.", cache_file_bytes.load());
  put("qdelta_cache_files_loaded_total", "counter", "Snapshots that were read from disk.", cache_files_loaded.load());
  put("qdelta_forked_sequences_total", "counter", "Sequences whose prompts were read with another's.",
      forked_sequences.load());
  put("qdelta_read_ahead_tokens_total", "counter", "Tokens of answers that were read for prompts to come.",
      read_ahead_tokens.load());
  put("qdelta_abandoned_sequences_total", "counter", "Sequences that were not finished: the client had gone.",
      abandoned.load());

  const std::lock_guard lock(mutex_);
  out +=
      "# HELP qdelta_requests_total Requests by HTTP status; 499: the client went before the answer.\n"
      "# TYPE qdelta_requests_total counter\n";
  for (const auto& [status, count] : by_status_) {
    fmt::format_to(std::back_inserter(out), "qdelta_requests_total{{status=\"{}\"}} {}\n", status, count);
  }
  completion_.write("qdelta_completion_seconds", "From a completion's request to the end of its answer.", out);
  first_token_.write("qdelta_first_token_seconds", "From a completion's request to its first token.", out);
  return out;
}

}  // namespace qdelta::serve
