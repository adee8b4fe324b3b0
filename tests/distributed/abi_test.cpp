// The declarations of libraries that are loaded at run time, against the libraries' own where those are installed.
#include <gtest/gtest.h>

#include "distributed/mpi_library.h"

#if __has_include(<mpi.h>)
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#endif
#if defined(QDELTA_WITH_CUDA) && __has_include(<nccl.h>)
#include <nccl.h>

#include "distributed/cuda/nccl_library.h"
#endif

namespace qdelta::testing {
namespace {

TEST(BinaryInterface, OfOpenMpi) {
#ifdef OPEN_MPI
  static_assert(sizeof(MPI_Comm) == sizeof(mpi::Communicator) && sizeof(MPI_Request) == sizeof(mpi::Request));
  static_assert(MPI_SUCCESS == mpi::kSuccess && MPI_THREAD_SERIALIZED == mpi::kThreadSerialized);
  static_assert(MPI_COMM_TYPE_SHARED == mpi::kCommTypeShared);
  static_assert(MPI_MAX_ERROR_STRING <= mpi::kStringLength && MPI_MAX_LIBRARY_VERSION_STRING <= mpi::kStringLength);
  SUCCEED();
#else
  GTEST_SKIP() << "there is no mpi.h of Open MPI on this machine (Debian: libopenmpi-dev)";
#endif
}

TEST(BinaryInterface, OfNccl) {
#ifdef NCCL_MAJOR
  static_assert(sizeof(ncclUniqueId) == sizeof(nccl::UniqueId) && sizeof(ncclComm_t) == sizeof(nccl::Comm));
  static_assert(int{ncclSuccess} == nccl::kSuccess && int{ncclSum} == nccl::kSum && int{ncclMax} == nccl::kMax);
  static_assert(int{ncclUint8} == nccl::kUint8 && int{ncclInt64} == nccl::kInt64);
  static_assert(int{ncclFloat32} == nccl::kFloat32 && int{ncclFloat64} == nccl::kFloat64);
  SUCCEED();
#else
  GTEST_SKIP() << "this build has no CUDA, or the machine no nccl.h";
#endif
}

}  // namespace
}  // namespace qdelta::testing
