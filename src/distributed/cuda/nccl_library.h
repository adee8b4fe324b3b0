// NCCL's C interface, loaded at run time. Declared here, because nccl.h is not needed to build; the values are part of
// its binary interface. tests/distributed/abi_test.cpp compares them with nccl.h where that is installed.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <string>

namespace qdelta::nccl {

using Comm = void*;
struct UniqueId {
  std::array<char, 128> internal;
};

inline constexpr int kSuccess = 0;
inline constexpr int kUint8 = 1, kInt64 = 4, kFloat32 = 7, kFloat64 = 8;
inline constexpr int kSum = 0, kMax = 2;
inline constexpr const char* kLibrary = "libnccl.so.2";

struct Library {
  int (*get_version)(int*) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  const char* (*get_last_error)(Comm) = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*comm_init_rank)(Comm*, int, UniqueId, int) = nullptr;
  int (*comm_destroy)(Comm) = nullptr;
  int (*comm_abort)(Comm) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, Comm, cudaStream_t) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*send)(const void*, std::size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*recv)(void*, std::size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
};

// Loads it, once. Throws an Error that says what is missing.
[[nodiscard]] const Library& library();
// "NCCL 2.28.3"
[[nodiscard]] std::string version(const Library& library);

}  // namespace qdelta::nccl
