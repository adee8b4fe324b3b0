// For tests under the sanitizers, built with Clang. LLVM's OpenMP runtime announces itself in a file of /dev/shm named
// after the process, and a process that dies leaves its file behind, at times empty. Once numbers of processes come
// round, the next one of that number reads the empty file and dies of SIGBUS. So each process gets a file that nobody
// else can see.
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

extern "C" int shm_open(const char* name, int flags, mode_t /*mode*/) {
  if (flags & O_CREAT) return memfd_create(name, MFD_CLOEXEC);
  errno = ENOENT;  // at its end the runtime looks for the file once more, to remove it
  return -1;
}
