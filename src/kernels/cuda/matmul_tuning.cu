#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "core/memory.h"
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/matmul_cache.h"
#include "kernels/cuda/matmul_tuning.h"
#include "kernels/cuda/runtime.h"

namespace qdelta::cuda {
namespace {

// Memory for one result; null where there is none.
using TrialMemory = std::unique_ptr<std::byte, void (*)(std::byte*) noexcept>;
TrialMemory trial_memory(std::size_t bytes) {
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

// Numbers from -1 to 1, as many as fill the bytes, of one of the two types.
__global__ __launch_bounds__(kBlockThreads) void random_kernel(void* data, std::int64_t count, bool is_bf16,
                                                               unsigned long long seed) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kBlockThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < count; i += stride) {
    unsigned long long mixed = static_cast<unsigned long long>(i) + seed;
    mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebULL;
    const float value = static_cast<float>(mixed >> 40U) * 0x1p-23F - 1.0F;
    if (is_bf16) {
      static_cast<bf16*>(data)[i] = static_cast<bf16>(value);
    } else {
      static_cast<float*>(data)[i] = value;
    }
  }
}

void fill_random(const Context& context, void* data, std::int64_t count, DType type, unsigned long long seed) {
  random_kernel<<<8 * context.sm_count(), kBlockThreads, 0, context.stream()>>>(data, count, type == DType::bf16, seed);
  check_launch("random");
}

// The operands and the result of a product, and the sum of a fingerprint, side by side from `base` on; null: to count
// how much memory they take.
struct TrialParts {
  std::int64_t a, b, add;  // elements
  std::size_t result_bytes;
  Trial trial;
  unsigned long long* sum;
  std::size_t used;

  TrialParts(const MatmulShape& shape, std::byte* base)
      : a(elements(shape.a, shape.rows, shape.inner)),
        b(elements(shape.b, shape.inner, shape.cols)),
        add(shape.rows * shape.ld_add),
        result_bytes(static_cast<std::size_t>(shape.rows * shape.ldc) * size_of(shape.out)) {
    BumpAllocator memory(base);
    const auto take = [&](std::int64_t count, DType type) {
      return memory.take<std::byte>(count * static_cast<std::int64_t>(size_of(type)));
    };
    trial = {.a = take(a, shape.in), .b = take(b, shape.in), .add = take(add, shape.out), .c = nullptr};
    trial.c = memory.take<std::byte>(static_cast<std::int64_t>(result_bytes));
    sum = memory.take<unsigned long long>(1);
    used = memory.used();
  }
  void fill(const Context& context, const MatmulShape& shape) const {
    fill_random(context, trial.a, a, shape.in, 1);
    fill_random(context, trial.b, b, shape.in, std::uint64_t{1} << 40U);
    fill_random(context, trial.add, add, shape.out, std::uint64_t{1} << 41U);
  }

 private:
  // Of an operand whose op() is rows x cols.
  static std::int64_t elements(const MatmulShape::Operand& operand, std::int64_t rows, std::int64_t cols) {
    return (operand.transposed ? cols : rows) * operand.ld;
  }
};

}  // namespace

int fastest_with_same_bits(const Context& context, int algorithms, std::size_t bytes,
                           const std::function<bool(int algorithm, void* out)>& run) {
  constexpr int kRepeats = 3;
  const std::size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const TrialMemory trial = trial_memory(padded + sizeof(unsigned long long));
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

bool has_same_bits(const Context& context, const MatmulShape& shape, const TrialRun& one, const TrialRun& other) {
  const TrialMemory memory = trial_memory(TrialParts(shape, nullptr).used);
  if (memory == nullptr) return false;
  const TrialParts parts(shape, memory.get());
  parts.fill(context, shape);
  const auto bits_of = [&](const TrialRun& run) {
    QDELTA_CUDA(cudaMemsetAsync(parts.trial.c, 0, parts.result_bytes, context.stream()));
    run(parts.trial);
    return fingerprint(context, parts.trial.c, parts.result_bytes, parts.sum);
  };
  return bits_of(one) == bits_of(other);
}

}  // namespace qdelta::cuda
