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
  std::atomic<std::uint64_t> generated_tokens{0};
  std::atomic<std::uint64_t> decode_steps{0};  // of the whole batch; generated_tokens over this is its mean size
  std::atomic<std::uint64_t> abandoned{0};     // sequences that ended before their time: the client had gone

  // A request has been answered: with this status, or 499 where the client had gone before the answer.
  void answered(int status);
  // A completion has been sent to its end.
  void completed(double seconds);

  [[nodiscard]] std::string text() const;

 private:
  // Seconds; each bucket counts what took at most so long.
  static constexpr std::array<double, 12> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300};

  mutable std::mutex mutex_;
  std::map<int, std::uint64_t> by_status_;
  std::array<std::uint64_t, kBounds.size()> within_{};
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace qdelta::serve
