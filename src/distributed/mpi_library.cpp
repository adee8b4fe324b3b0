#include "distributed/mpi_library.h"

#include <dlfcn.h>

#include <array>
#include <type_traits>

#include "core/error.h"

namespace qdelta::mpi {
namespace {

Library load() {
  // Open MPI's plugins look for its symbols among the global ones. Never closed: it keeps threads.
  void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    fail(Status::unsupported,
         "training on several processes needs Open MPI ({}): {}\n"
         "On Debian and Ubuntu: apt-get install openmpi-bin",
         kLibrary, reason == nullptr ? "it cannot be loaded" : reason);
  }
  Library library;
  const auto find = [handle](const char* name, auto& symbol) {
    symbol = reinterpret_cast<std::remove_reference_t<decltype(symbol)>>(::dlsym(handle, name));
    if (symbol == nullptr) fail(Status::unsupported, "{} is not Open MPI's: it has no {}", kLibrary, name);
  };
  find("ompi_mpi_comm_world", library.world);
  find("ompi_mpi_byte", library.byte);
  find("ompi_mpi_info_null", library.info_null);
  find("ompi_mpi_errors_return", library.errors_return);
  find("MPI_Init_thread", library.init_thread);
  find("MPI_Finalize", library.finalize);
  find("MPI_Abort", library.abort);
  find("MPI_Comm_rank", library.comm_rank);
  find("MPI_Comm_size", library.comm_size);
  find("MPI_Comm_dup", library.comm_dup);
  find("MPI_Comm_split_type", library.comm_split_type);
  find("MPI_Comm_set_errhandler", library.comm_set_errhandler);
  find("MPI_Isend", library.isend);
  find("MPI_Irecv", library.irecv);
  find("MPI_Ibarrier", library.ibarrier);
  find("MPI_Ibcast", library.ibcast);
  find("MPI_Testall", library.testall);
  find("MPI_Error_string", library.error_string);
  find("MPI_Get_library_version", library.get_library_version);
  return library;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

std::string version(const Library& library) {
  std::array<char, kStringLength> text{};
  int length = 0;
  library.get_library_version(text.data(), &length);
  const std::string whole(text.data(), static_cast<std::size_t>(length));
  return whole.substr(0, whole.find(','));  // the rest is about who built it
}

}  // namespace qdelta::mpi
