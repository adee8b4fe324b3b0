// One GPU as the kernels see it: a stream to launch on, the matrix library's handle, and checks of every call.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "core/error.h"
#include "kernels/cuda/matmul_cache.h"

namespace qdelta::cuda {

// Throws an Error that names the call and what CUDA says of it.
void check(cudaError_t result, const char* call);
void check(cublasStatus_t result, const char* call);
#define QDELTA_CUDA(call) ::qdelta::cuda::check((call), #call)
// After a launch: its error, if any, under the kernel's name.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// What helps when memory runs out.
inline constexpr const char* kLowerWhat = "lower the batch or the context, or recompute activations";

// Whether the kernels were compiled for the current device.
[[nodiscard]] bool has_code();

// Everything on one device happens on one stream, in order.
class Context {
 public:
  explicit Context(int ordinal);
  // On someone else's stream and without the matrix library: it allocates nothing on the GPU.
  Context(int ordinal, cudaStream_t stream);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] cublasLtHandle_t matrix() const { return matrix_; }
  [[nodiscard]] std::span<std::byte> matrix_workspace() const { return {matrix_workspace_, kMatrixWorkspace}; }
  [[nodiscard]] MatmulCache& matmul_cache() const { return *matmul_cache_; }
  [[nodiscard]] int sm_count() const { return sm_count_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int shared_memory() const { return shared_memory_; }  // bytes a block may have, opted in
  void synchronize() const;

 private:
  Context();
  void choose(int ordinal);

  static constexpr std::size_t kMatrixWorkspace = std::size_t{32} << 20;

  int ordinal_ = 0;
  int sm_count_ = 0;
  int shared_memory_ = 0;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  bool owns_stream_ = false;
  cublasLtHandle_t matrix_ = nullptr;
  std::byte* matrix_workspace_ = nullptr;
  std::unique_ptr<MatmulCache> matmul_cache_ = std::make_unique<MatmulCache>();
};

}  // namespace qdelta::cuda
