// Open MPI's C interface, loaded at run time. Declared here, because mpi.h is not needed to build: handles are pointers
// to objects of the library, and the constants have been these since its version 1.3 (libmpi.so.40: versions 3 to 5).
// tests/distributed/abi_test.cpp compares them with mpi.h where that is installed.
#pragma once

#include <string>

namespace qdelta::mpi {

using Communicator = void*;
using Datatype = void*;
using Request = void*;
using Info = void*;
using ErrorHandler = void*;

inline constexpr int kSuccess = 0;
inline constexpr int kThreadSerialized = 2;
inline constexpr int kCommTypeShared = 0;
inline constexpr int kStringLength = 256;  // of error texts and of the version's
inline constexpr const char* kLibrary = "libmpi.so.40";

struct Library {
  Communicator world = nullptr;
  Datatype byte = nullptr;
  Info info_null = nullptr;
  ErrorHandler errors_return = nullptr;

  int (*init_thread)(int*, char***, int, int*) = nullptr;
  int (*finalize)() = nullptr;
  int (*abort)(Communicator, int) = nullptr;
  int (*comm_rank)(Communicator, int*) = nullptr;
  int (*comm_size)(Communicator, int*) = nullptr;
  int (*comm_dup)(Communicator, Communicator*) = nullptr;
  int (*comm_split_type)(Communicator, int, int, Info, Communicator*) = nullptr;
  int (*comm_set_errhandler)(Communicator, ErrorHandler) = nullptr;
  int (*isend)(const void*, int, Datatype, int, int, Communicator, Request*) = nullptr;
  int (*irecv)(void*, int, Datatype, int, int, Communicator, Request*) = nullptr;
  int (*ibarrier)(Communicator, Request*) = nullptr;
  int (*ibcast)(void*, int, Datatype, int, Communicator, Request*) = nullptr;
  int (*testall)(int, Request*, int*, void*) = nullptr;
  int (*error_string)(int, char*, int*) = nullptr;
  int (*get_library_version)(char*, int*) = nullptr;
};

// Loads it, once. Throws an Error that says which package is missing.
[[nodiscard]] const Library& library();
// "Open MPI v4.1.4"
[[nodiscard]] std::string version(const Library& library);

}  // namespace qdelta::mpi
