// A library to preload: it counts the calls by which a program changes files below one folder, and makes one of them go
// wrong.
//
//   TORTURE_ROOT=FOLDER   only calls on what lies below it count; without it the library does nothing
//   TORTURE_LOG=FILE      each call is noted here, a line with its number, name and path
//   TORTURE_AT=N          the call of this number, from 1, goes wrong
//   TORTURE_MODE=         kill    the process is killed before the call
//                         half    of a write the first half is written, any other call is made; then it is killed
//                         enospc  the call fails, the disk being full; eio: with an I/O error
//                         lost    as a power cut: killed before the call, and what was not flushed is undone. Data
//                         since
//                                 the last fsync of a file is cut off; a rename whose folder was not flushed since is
//                                 taken back, and what it replaced is there again
//
// Calls are those of this library's names only: what libc does within itself (stdio) is not seen.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kMost = 1024;  // files and renames that are remembered

struct Rename {
  char from[PATH_MAX], to[PATH_MAX], backup[PATH_MAX];  // backup: a second name of what was replaced, or empty
  bool pending;
};
struct File {
  dev_t device;
  ino_t inode;
  off_t flushed;   // bytes
  int descriptor;  // of our own: the file may be closed and renamed
};

Rename renames[kMost];
int rename_count = 0;
File files[kMost];
int file_count = 0;
long calls = 0;
thread_local bool inside = false;  // calls of the library itself do not count

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
const char* text_of(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}
bool mode_is(const char* mode) { return std::strcmp(text_of("TORTURE_MODE"), mode) == 0; }

bool ours(const char* path) {
  const char* root = text_of("TORTURE_ROOT");
  const size_t length = std::strlen(root);
  return !inside && length > 0 && std::strncmp(path, root, length) == 0 &&
         (path[length] == '/' || path[length] == '\0');
}
void path_of_descriptor(int descriptor, char* path) {
  char link[64];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length < 0 ? 0 : length] = '\0';
}
// The absolute path of a name in a folder.
void path_at(int folder, const char* name, char* path) {
  char base[PATH_MAX];
  if (*name == '/') {
    std::snprintf(path, PATH_MAX, "%s", name);
    return;
  }
  if (folder == AT_FDCWD) {
    if (getcwd(base, sizeof(base)) == nullptr) *base = '\0';
  } else {
    path_of_descriptor(folder, base);
  }
  if (std::snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) std::abort();
}

File* file_of(int descriptor) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) return nullptr;
  for (int i = 0; i < file_count; ++i) {
    if (files[i].device == info.st_dev && files[i].inode == info.st_ino) return &files[i];
  }
  if (file_count == kMost) std::abort();
  files[file_count] = {info.st_dev, info.st_ino, info.st_size, fcntl(descriptor, F_DUPFD_CLOEXEC, 500)};
  return &files[file_count++];
}

void undo_what_was_not_flushed() {
  for (int i = rename_count - 1; i >= 0; --i) {
    if (!renames[i].pending) continue;
    real<int (*)(const char*, const char*)>("rename")(renames[i].to, renames[i].from);
    if (*renames[i].backup != '\0') {
      real<int (*)(const char*, const char*)>("rename")(renames[i].backup, renames[i].to);
    }
  }
  for (int i = 0; i < file_count; ++i) {
    struct stat info {};
    if (fstat(files[i].descriptor, &info) == 0 && info.st_size > files[i].flushed) {
      if (real<int (*)(int, off_t)>("ftruncate")(files[i].descriptor, files[i].flushed) != 0) std::abort();
    }
  }
}

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  std::abort();
}

// Counts a call and, where it is its turn, kills the process or returns the error that it is to fail with; 0: none.
// `half` is set where it is to be killed half-way.
int turn(const char* name, const char* path, bool& half) {
  inside = true;
  ++calls;
  if (const char* log = text_of("TORTURE_LOG"); *log != '\0') {
    const int file = real<int (*)(const char*, int, ...)>("open")(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    char line[PATH_MAX + 64];
    const int length = std::snprintf(line, sizeof(line), "%ld %s %s\n", calls, name, path);
    if (real<ssize_t (*)(int, const void*, size_t)>("write")(file, line, static_cast<size_t>(length)) < 0) std::abort();
    real<int (*)(int)>("close")(file);
  }
  int error = 0;
  if (calls == std::atol(text_of("TORTURE_AT"))) {
    if (mode_is("lost")) undo_what_was_not_flushed();
    if (mode_is("kill") || mode_is("lost")) die();
    half = mode_is("half");
    error = mode_is("enospc") ? ENOSPC : mode_is("eio") ? EIO : 0;
  }
  inside = false;
  return error;
}

// A call on a path: counted, made unless it fails, and the last one where it is killed half-way.
template <class Call>
int on_path(const char* name, const char* path, const Call& call) {
  if (!ours(path)) return call();
  bool half = false;
  if (const int error = turn(name, path, half); error != 0) return errno = error, -1;
  const int result = call();
  if (half) die();
  return result;
}

bool is_written(int descriptor, char* path) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (inside || flags < 0 || (flags & O_ACCMODE) == O_RDONLY) return false;
  path_of_descriptor(descriptor, path);
  return ours(path);
}

// Its answer is that of the write.
template <class Call>
ssize_t on_write(const char* name, int descriptor, size_t size, const Call& call) {
  char path[PATH_MAX];
  if (!is_written(descriptor, path)) return call(size);
  static_cast<void>(file_of(descriptor));  // before it grows
  bool half = false;
  if (const int error = turn(name, path, half); error != 0) return errno = error, -1;
  const ssize_t result = call(half ? size / 2 : size);
  if (half) die();
  return result;
}

int rename_at(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const auto call = real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  char from_path[PATH_MAX];
  char to_path[PATH_MAX];
  path_at(from_folder, from, from_path);
  path_at(to_folder, to, to_path);
  return on_path("rename", to_path, [&] {
    if (!ours(to_path) || flags != 0) return call(from_folder, from, to_folder, to, flags);
    inside = true;
    if (rename_count == kMost) std::abort();
    Rename& entry = renames[rename_count];
    std::strcpy(entry.from, from_path);
    std::strcpy(entry.to, to_path);
    std::snprintf(entry.backup, PATH_MAX, "%s.torture/%d-%d", text_of("TORTURE_ROOT"), getpid(), rename_count);
    if (real<int (*)(const char*, const char*)>("link")(to_path, entry.backup) != 0) *entry.backup = '\0';
    const int result = call(from_folder, from, to_folder, to, flags);
    if (result == 0) entry.pending = true, ++rename_count;
    inside = false;
    return result;
  });
}

void folder_is_flushed(const char* folder) {
  const size_t length = std::strlen(folder);
  for (int i = 0; i < rename_count; ++i) {
    if (std::strncmp(renames[i].to, folder, length) != 0 ||
        std::strrchr(renames[i].to, '/') != renames[i].to + length) {
      continue;
    }
    renames[i].pending = false;
    inside = true;
    if (*renames[i].backup != '\0') real<int (*)(const char*)>("unlink")(renames[i].backup);
    inside = false;
  }
}

int flush(const char* name, int descriptor) {
  char path[PATH_MAX];
  path_of_descriptor(descriptor, path);
  return on_path(name, path, [&] {
    const int result = real<int (*)(int)>(name)(descriptor);
    if (result != 0 || !ours(path)) return result;
    struct stat info {};
    if (fstat(descriptor, &info) == 0 && S_ISDIR(info.st_mode)) folder_is_flushed(path);
    if (File* file = file_of(descriptor)) file->flushed = info.st_size;
    return result;
  });
}

int open_at(int folder, const char* name, int flags, mode_t mode) {
  const auto call = [&] { return real<int (*)(int, const char*, int, ...)>("openat")(folder, name, flags, mode); };
  if (inside || (flags & O_ACCMODE) == O_RDONLY) return call();
  char path[PATH_MAX];
  path_at(folder, name, path);
  return on_path("open", path, call);
}

mode_t mode_of(int flags, va_list rest) { return (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0; }

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return open_at(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return open_at(folder, path, flags, mode);
}
ssize_t write(int file, const void* data, size_t size) {
  return on_write("write", file, size,
                  [&](size_t most) { return real<ssize_t (*)(int, const void*, size_t)>("write")(file, data, most); });
}
ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
  return on_write("pwrite", file, size, [&](size_t most) {
    return real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(file, data, most, at);
  });
}
int rename(const char* from, const char* to) noexcept { return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return rename_at(from_folder, from, to_folder, to, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return rename_at(from_folder, from, to_folder, to, flags);
}
int fsync(int file) { return flush("fsync", file); }
int fdatasync(int file) { return flush("fdatasync", file); }
int link(const char* from, const char* to) noexcept {
  char path[PATH_MAX];
  path_at(AT_FDCWD, to, path);
  return on_path("link", path, [&] { return real<int (*)(const char*, const char*)>("link")(from, to); });
}
int unlink(const char* name) noexcept {
  char path[PATH_MAX];
  path_at(AT_FDCWD, name, path);
  return on_path("unlink", path, [&] { return real<int (*)(const char*)>("unlink")(name); });
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  char path[PATH_MAX];
  path_at(folder, name, path);
  return on_path("unlink", path, [&] { return real<int (*)(int, const char*, int)>("unlinkat")(folder, name, flags); });
}
int remove(const char* name) noexcept {
  char path[PATH_MAX];
  path_at(AT_FDCWD, name, path);
  return on_path("unlink", path, [&] { return real<int (*)(const char*)>("remove")(name); });
}
int rmdir(const char* name) noexcept {
  char path[PATH_MAX];
  path_at(AT_FDCWD, name, path);
  return on_path("rmdir", path, [&] { return real<int (*)(const char*)>("rmdir")(name); });
}
int mkdir(const char* name, mode_t mode) noexcept {
  char path[PATH_MAX];
  path_at(AT_FDCWD, name, path);
  return on_path("mkdir", path, [&] { return real<int (*)(const char*, mode_t)>("mkdir")(name, mode); });
}
int ftruncate(int file, off_t size) noexcept {
  char path[PATH_MAX];
  path_of_descriptor(file, path);
  return on_path("ftruncate", path, [&] { return real<int (*)(int, off_t)>("ftruncate")(file, size); });
}
// The descriptor is given back also where close fails, as Linux does it.
int close(int file) {
  const auto call = real<int (*)(int)>("close");
  char path[PATH_MAX];
  if (!is_written(file, path)) return call(file);
  bool half = false;
  const int error = turn("close", path, half);
  const int result = call(file);
  if (half) die();
  return error != 0 ? (errno = error, -1) : result;
}
}
