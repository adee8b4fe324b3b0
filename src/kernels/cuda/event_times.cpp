#include "kernels/cuda/event_times.h"

#include "kernels/cuda/context.h"

namespace qdelta::cuda {

EventTimes::~EventTimes() {
  for (const Pair& pair : pairs_) {
    cudaEventDestroy(pair.begin);
    cudaEventDestroy(pair.end);
  }
}

void EventTimes::begin(int kind) {
  if (pairs_.size() == kinds_.size()) {
    Pair pair;
    QDELTA_CUDA(cudaEventCreate(&pair.begin));
    pairs_.push_back(pair);
    QDELTA_CUDA(cudaEventCreate(&pairs_.back().end));
  }
  QDELTA_CUDA(cudaEventRecord(pairs_[kinds_.size()].begin, context_.stream()));
  kinds_.push_back(kind);
}

// An op that fails leaves a range that has no time; take() is what reports errors.
void EventTimes::end() noexcept { (void)cudaEventRecord(pairs_[kinds_.size() - 1].end, context_.stream()); }

std::vector<EventTimes::Range> EventTimes::take() {
  context_.synchronize();
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    float milliseconds = 0;
    QDELTA_CUDA(cudaEventElapsedTime(&milliseconds, pairs_[i].begin, pairs_[i].end));
    ranges.push_back({kinds_[i], double{milliseconds} / 1e3});
  }
  kinds_.clear();
  return ranges;
}

}  // namespace qdelta::cuda
