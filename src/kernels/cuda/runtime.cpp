#include "kernels/cuda/runtime.h"

#include <algorithm>
#include <atomic>

#include "kernels/cuda/context.h"

namespace qdelta::cuda {
namespace {

std::atomic<std::size_t> peak_bytes = 0;

double gigabytes(std::size_t bytes) { return static_cast<double>(bytes) / 1e9; }

// How many GPUs there are. Without one, or without a driver, CUDA calls that an error; here it just means none, and
// why_none says what to do.
int device_count(std::string& why_none) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) return count;
  (void)cudaGetLastError();
  int driver = 0;  // stays 0 where there is none
  (void)cudaDriverGetVersion(&driver);
  const auto text = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
  why_none = "this machine has no GPU that CUDA can use (see nvidia-smi)";
  if (result == cudaErrorInsufficientDriver && driver > 0) {
    why_none =
        fmt::format("the NVIDIA driver on this machine is for CUDA {} and older, and this build needs one for {}",
                    text(driver), text(CUDART_VERSION));
  }
  return 0;
}

void require_gpu(int ordinal) {
  std::string why_none;
  const int count = device_count(why_none);
  if (count == 0) fail(Status::unsupported, "{}", why_none);
  require(ordinal >= 0 && ordinal < count, "there is no GPU {}: this machine has {}", ordinal, count);
}

}  // namespace

std::vector<std::string> names(std::string& why_none) {
  std::vector<std::string> found;
  const int count = device_count(why_none);
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    QDELTA_CUDA(cudaGetDeviceProperties(&properties, i));
    found.push_back(fmt::format("GPU {}: {}, {:.0f} GB, compute capability {}.{}", i, properties.name,
                                gigabytes(properties.totalGlobalMem), properties.major, properties.minor));
  }
  return found;
}

std::shared_ptr<const Context> open(int ordinal) {
  require_gpu(ordinal);
  return std::make_shared<Context>(ordinal);
}

std::shared_ptr<const Context> open_on_stream(int ordinal, void* stream) {
  require_gpu(ordinal);
  int before = 0;
  QDELTA_CUDA(cudaGetDevice(&before));
  auto context = std::make_shared<Context>(ordinal, static_cast<cudaStream_t>(stream));
  restore_current(before);
  return context;
}

int exchange_current(const Context& context) {
  int before = 0;
  QDELTA_CUDA(cudaGetDevice(&before));
  if (before == context.ordinal()) return -1;
  QDELTA_CUDA(cudaSetDevice(context.ordinal()));
  return before;
}

void restore_current(int ordinal) noexcept { (void)cudaSetDevice(ordinal); }

void use_in_this_thread(const Context& context) { QDELTA_CUDA(cudaSetDevice(context.ordinal())); }

std::byte* allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t result = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
  if (result == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    std::size_t available = 0;
    std::size_t total = 0;
    (void)cudaMemGetInfo(&available, &total);
    fail(Status::out_of_memory, "the GPU has no room for {:.2f} GB more ({:.2f} of {:.2f} GB are free): {}",
         gigabytes(bytes), gigabytes(available), gigabytes(total), kLowerWhat);
  }
  check(result, "cudaMalloc");
  std::size_t available = 0;
  std::size_t total = 0;
  QDELTA_CUDA(cudaMemGetInfo(&available, &total));
  std::size_t most = peak_bytes;
  while (most < total - available && !peak_bytes.compare_exchange_weak(most, total - available)) {
  }
  return static_cast<std::byte*>(data);
}

std::size_t peak_memory() { return peak_bytes; }

void release(std::byte* data) noexcept { cudaFree(data); }

void upload(const Context& context, void* to, const void* host, std::size_t bytes) {
  QDELTA_CUDA(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, context.stream()));
}

void download(const Context& context, void* host, const void* from, std::size_t bytes) {
  QDELTA_CUDA(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
}

void copy_on_device(const Context& context, void* to, const void* from, std::size_t bytes) {
  QDELTA_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, context.stream()));
}

void clear(const Context& context, void* data, std::size_t bytes) {
  if (bytes > 0) QDELTA_CUDA(cudaMemsetAsync(data, 0, bytes, context.stream()));
}

void synchronize(const Context& context) { context.synchronize(); }

}  // namespace qdelta::cuda
