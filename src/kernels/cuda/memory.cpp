#include "kernels/cuda/memory.h"

#include <algorithm>

#include "kernels/cuda/context.h"

namespace qdelta::cuda {
namespace {

double gigabytes(std::size_t bytes) { return static_cast<double>(bytes) / 1e9; }

int device_count() {
  int count = 0;
  // Without a driver or a GPU this is an error, which here just means: none.
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> found;
  for (int i = 0; i < device_count(); ++i) {
    cudaDeviceProp properties{};
    QDELTA_CUDA(cudaGetDeviceProperties(&properties, i));
    found.push_back(fmt::format("GPU {}: {}, {:.0f} GB, compute capability {}.{}", i, properties.name,
                                gigabytes(properties.totalGlobalMem), properties.major, properties.minor));
  }
  return found;
}

std::shared_ptr<const Context> open(int ordinal) {
  const int count = device_count();
  if (count == 0) fail(Status::unsupported, "this machine has no GPU that CUDA can use (see nvidia-smi)");
  require(ordinal >= 0 && ordinal < count, "there is no GPU {}: this machine has {}", ordinal, count);
  return std::make_shared<Context>(ordinal);
}

void use_in_this_thread(const Context& context) { QDELTA_CUDA(cudaSetDevice(context.ordinal())); }

std::byte* allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t result = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
  if (result == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    std::size_t available = 0;
    std::size_t total = 0;
    (void)cudaMemGetInfo(&available, &total);
    fail(Status::out_of_memory,
         "the GPU has no room for {:.2f} GB more ({:.2f} of {:.2f} GB are free): lower the batch or the context, or "
         "recompute activations",
         gigabytes(bytes), gigabytes(available), gigabytes(total));
  }
  check(result, "cudaMalloc");
  return static_cast<std::byte*>(data);
}

void release(std::byte* data) noexcept { cudaFree(data); }

void copy_in(const Context& context, void* to, const void* host, std::size_t bytes) {
  QDELTA_CUDA(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, context.stream()));
}

void copy_out(const Context& context, void* host, const void* from, std::size_t bytes) {
  QDELTA_CUDA(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
}

void copy_within(const Context& context, void* to, const void* from, std::size_t bytes) {
  QDELTA_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, context.stream()));
}

void clear(const Context& context, void* data, std::size_t bytes) {
  if (bytes > 0) QDELTA_CUDA(cudaMemsetAsync(data, 0, bytes, context.stream()));
}

void wait(const Context& context) { context.synchronize(); }

}  // namespace qdelta::cuda
