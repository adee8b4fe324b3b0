// Times of ranges of work on a GPU's stream, by pairs of events.
#pragma once

#include <cuda_runtime.h>

#include <vector>

namespace qdelta::cuda {

class Context;

class EventTimes {
 public:
  struct Range {
    int kind;
    double seconds;
  };

  explicit EventTimes(const Context& context) : context_(context) {}
  ~EventTimes();
  EventTimes(const EventTimes&) = delete;
  EventTimes& operator=(const EventTimes&) = delete;

  // The range that begins here is of that kind; ranges do not overlap.
  void begin(int kind);
  void end() noexcept;
  // Those that have ended, once they are done, and forgets them.
  [[nodiscard]] std::vector<Range> take();

 private:
  struct Pair {
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  const Context& context_;
  std::vector<Pair> pairs_;  // used again by the ranges after a take()
  std::vector<int> kinds_;   // of the ranges since then
};

}  // namespace qdelta::cuda
