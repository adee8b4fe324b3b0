#include "distributed/cuda/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

#include "core/error.h"

namespace qdelta::nccl {
namespace {

Library load() {
  void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // never closed: it keeps threads
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    fail(Status::unsupported,
         "communication between GPUs needs NCCL ({}): {}\n"
         "It comes with NVIDIA's packages for CUDA: apt-get install libnccl2",
         kLibrary, reason == nullptr ? "it cannot be loaded" : reason);
  }
  // One order of every sum: a ring's is fixed, where trees and switches choose by load. NCCL_ALGO set by the user
  // stays.
  ::setenv("NCCL_ALGO", "Ring", 0);
  Library library;
  const auto find = [handle](const char* name, auto& symbol) {
    symbol = reinterpret_cast<std::remove_reference_t<decltype(symbol)>>(::dlsym(handle, name));
    if (symbol == nullptr) fail(Status::unsupported, "{} is too old: it has no {}", kLibrary, name);
  };
  find("ncclGetVersion", library.get_version);
  find("ncclGetErrorString", library.get_error_string);
  find("ncclGetLastError", library.get_last_error);
  find("ncclGetUniqueId", library.get_unique_id);
  find("ncclCommInitRank", library.comm_init_rank);
  find("ncclCommDestroy", library.comm_destroy);
  find("ncclCommAbort", library.comm_abort);
  find("ncclAllReduce", library.all_reduce);
  find("ncclReduceScatter", library.reduce_scatter);
  find("ncclAllGather", library.all_gather);
  find("ncclBroadcast", library.broadcast);
  find("ncclSend", library.send);
  find("ncclRecv", library.recv);
  find("ncclGroupStart", library.group_start);
  find("ncclGroupEnd", library.group_end);
  return library;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

std::string version(const Library& library) {
  int code = 0;
  library.get_version(&code);
  return fmt::format("NCCL {}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace qdelta::nccl
