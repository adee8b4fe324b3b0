#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/matmul_tuning.h"
#include "kernels/cuda/runtime.h"

namespace qdelta::cuda {
namespace {

// Memory for one result; null where there is none.
using Trial = std::unique_ptr<std::byte, void (*)(std::byte*) noexcept>;
Trial trial_memory(std::size_t bytes) {
  try {
    return {allocate(bytes), release};
  } catch (const Error& error) {
    if (error.status() != Status::out_of_memory) throw;
    return {nullptr, release};
  }
}

class Events {
 public:
  Events() {
    QDELTA_CUDA(cudaEventCreate(&begin_));
    QDELTA_CUDA(cudaEventCreate(&end_));
  }
  ~Events() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  template <class Work>
  float milliseconds(cudaStream_t stream, const Work& work) {
    QDELTA_CUDA(cudaEventRecord(begin_, stream));
    work();
    QDELTA_CUDA(cudaEventRecord(end_, stream));
    QDELTA_CUDA(cudaEventSynchronize(end_));
    float time = 0;
    QDELTA_CUDA(cudaEventElapsedTime(&time, begin_, end_));
    return time;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Adds a mixture of each word and its place, so that the sum tells apart what differs in any bit. Sums of integers do
// not depend on their order.
__global__ __launch_bounds__(kBlockThreads) void fingerprint_kernel(const std::uint16_t* words, std::int64_t count,
                                                                    unsigned long long* sum) {
  unsigned long long own = 0;
  const std::int64_t stride = std::int64_t{gridDim.x} * kBlockThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < count; i += stride) {
    unsigned long long mixed = (static_cast<unsigned long long>(i) << 16U) | words[i];
    mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebULL;
    own += mixed ^ (mixed >> 31U);
  }
  own = warp_sum(own);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

unsigned long long fingerprint(const Context& context, const void* data, std::size_t bytes, unsigned long long* sum) {
  QDELTA_CUDA(cudaMemsetAsync(sum, 0, sizeof(*sum), context.stream()));
  const auto count = static_cast<std::int64_t>(bytes / sizeof(std::uint16_t));
  fingerprint_kernel<<<8 * context.sm_count(), kBlockThreads, 0, context.stream()>>>(
      static_cast<const std::uint16_t*>(data), count, sum);
  check_launch("fingerprint");
  unsigned long long value = 0;
  QDELTA_CUDA(cudaMemcpyAsync(&value, sum, sizeof(value), cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
  return value;
}

}  // namespace

int fastest_with_same_bits(const Context& context, int algorithms, std::size_t bytes,
                           const std::function<bool(int algorithm, void* out)>& run) {
  constexpr int kRepeats = 3;
  const std::size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const Trial trial = trial_memory(padded + sizeof(unsigned long long));
  if (trial == nullptr) return 0;
  auto* sum = reinterpret_cast<unsigned long long*>(trial.get() + padded);
  Events events;
  unsigned long long expected = 0;
  int fastest = 0;
  float least = std::numeric_limits<float>::max();
  for (int algorithm = 0; algorithm < algorithms; ++algorithm) {
    QDELTA_CUDA(cudaMemsetAsync(trial.get(), 0, bytes, context.stream()));
    if (!run(algorithm, trial.get())) continue;
    const unsigned long long found = fingerprint(context, trial.get(), bytes, sum);
    if (algorithm == 0) expected = found;
    if (found != expected) continue;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const float time = events.milliseconds(context.stream(), [&] {
        (void)run(algorithm, trial.get());
        (void)run(algorithm, trial.get());
      });
      if (time < least) {
        least = time;
        fastest = algorithm;
      }
    }
  }
  return fastest;
}

}  // namespace qdelta::cuda
