#include "kernels/cuda/context.h"

#include "kernels/cuda/runtime.h"

namespace qdelta::cuda {

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();  // or the next launch would be blamed
  if (result == cudaErrorMemoryAllocation) {
    fail(Status::out_of_memory, "the GPU's memory is full (in {}): {}", call, kLowerWhat);
  }
  fail(Status::internal, "CUDA: {} ({}) in {}", cudaGetErrorString(result), cudaGetErrorName(result), call);
}

void check(cublasStatus_t result, const char* call) {
  if (result == CUBLAS_STATUS_SUCCESS) return;
  if (result == CUBLAS_STATUS_ALLOC_FAILED) {
    fail(Status::out_of_memory, "the memory is full (in {}): {}", call, kLowerWhat);
  }
  fail(Status::internal, "cuBLASLt: {} in {}", cublasLtGetStatusName(result), call);
}

// The first constructor done, the destructor cleans up behind a second that fails.
Context::Context() = default;

Context::Context(int ordinal) : Context() {
  choose(ordinal);
  QDELTA_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  owns_stream_ = true;
  QDELTA_CUDA(cublasLtCreate(&matrix_));
  matrix_workspace_ = allocate(kMatrixWorkspace);
}

Context::Context(int ordinal, cudaStream_t stream) : Context() {
  choose(ordinal);
  stream_ = stream;
}

// Makes a GPU the current one and asks it what the kernels need to know.
void Context::choose(int ordinal) {
  ordinal_ = ordinal;
  QDELTA_CUDA(cudaSetDevice(ordinal));
  int major = 0;
  int minor = 0;
  QDELTA_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
  QDELTA_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
  cudaDeviceProp properties{};
  QDELTA_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  name_ = properties.name;
  if (major < 8) {
    fail(Status::unsupported, "GPU {} ({}) has compute capability {}.{}; 8.0 or newer is needed", ordinal, name_, major,
         minor);
  }
  if (!has_code()) {
    fail(Status::unsupported,
         "this build has no code for GPU {} ({}, compute capability {}.{}); see QDELTA_CUDA_ARCHITECTURES", ordinal,
         name_, major, minor);
  }
  QDELTA_CUDA(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, ordinal));
  QDELTA_CUDA(cudaDeviceGetAttribute(&shared_memory_, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal));
}

Context::~Context() {
  cudaFree(matrix_workspace_);
  if (matrix_ != nullptr) cublasLtDestroy(matrix_);
  if (owns_stream_) cudaStreamDestroy(stream_);
}

void Context::synchronize() const { QDELTA_CUDA(cudaStreamSynchronize(stream_)); }

}  // namespace qdelta::cuda
