// What the server counts, and the text of it in the format that Prometheus reads.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace qdelta::serve {

class Metrics {
 public:
  // The engine's.
  std::atomic<std::int64_t> queued{0};          // requests that wait for a place in the batch
  std::atomic<std::int64_t> running{0};         // sequences in the batch
  std::atomic<std::uint64_t> prompt_tokens{0};  // read
  std::atomic<std::uint64_t> prompt_reads{0};   // times that prompts were read further
  std::atomic<std::uint64_t> generated_tokens{0};
  std::atomic<std::uint64_t> decode_steps{0};   // of the whole batch; generated_tokens over this is its mean size
  std::atomic<std::uint64_t> cached_tokens{0};  // of prompts, not read again
  std::atomic<std::uint64_t> cache_lookups{0}, cache_hits{0}, cache_evictions{0};
  std::atomic<std::int64_t> cache_snapshots{0}, cache_bytes{0}, cache_files{0}, cache_file_bytes{0};
  std::atomic<std::uint64_t> cache_files_loaded{0};
  std::atomic<std::uint64_t> forked_sequences{0};   // that others read for
  std::atomic<std::uint64_t> read_ahead_tokens{0};  // of answers, for prompts to come
  std::atomic<std::uint64_t> abandoned{0};          // sequences that ended before their time: the client had gone

  // A request has been answered: with this status, or 499 where the client had gone before the answer.
  void answered(int status);
  // A completion has been generated to its end: after so many seconds, and its first token after so many.
  void completed(double seconds, double first_token);

  [[nodiscard]] std::string text() const;

 private:
  // How many took at most so many seconds.
  class Histogram {
   public:
    void add(double seconds);
    void write(const char* name, const char* help, std::string& out) const;

   private:
    static constexpr std::array<double, 12> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300};
    std::array<std::uint64_t, kBounds.size()> within_{};
    std::uint64_t count_ = 0;
    double sum_ = 0;
  };

  mutable std::mutex mutex_;
  std::map<int, std::uint64_t> by_status_;
  Histogram completion_, first_token_;
};

}  // namespace qdelta::serve
