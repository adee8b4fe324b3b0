// Clients of a server, many of them in one thread: each sends a streaming completion, reads it to its end, and goes on
// with the next. What they see is measured: when the first token came, how long it took from one to the next, how many
// came in all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace qdelta::bench {

struct Load {
  int port = 0;
  std::int64_t clients = 1;
  double rate = 0;                   // requests per second (open loop, no more than `clients` at once); 0: each
                                     // client sends its next request when it has its answer (closed loop)
  double warm_up = 2, seconds = 10;  // before anything counts, and while it does
  std::function<std::string()> next_request;  // the body of one
  std::uint64_t seed = 1;
};

constexpr std::int64_t kLoadParts = 5;

struct LoadResult {
  double seconds = 0;
  std::int64_t tokens = 0;                          // that came within the time that counts
  std::vector<std::int64_t> tokens_of_part;         // the same in each fifth of that time
  std::int64_t requests = 0;                        // that ended in it
  std::int64_t refused = 0;                         // answered with an error, or not at all
  std::int64_t late = 0;                            // of an open loop: not sent, because all clients were busy
  std::vector<double> first_token, between_tokens;  // seconds, sorted
};

// Throws where the server cannot be reached.
[[nodiscard]] LoadResult drive(const Load& load);

// p of sorted values, 0 where there are none.
[[nodiscard]] double percentile(const std::vector<double>& sorted, double p);

}  // namespace qdelta::bench
