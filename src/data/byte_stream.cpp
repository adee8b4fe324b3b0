#include "data/byte_stream.h"

#include <lzma.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "io/regular_file.h"

namespace qdelta {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 18U;
constexpr std::uint64_t kMostMemory = std::uint64_t{1} << 30U;  // for a dictionary; xz -9 takes 65 MiB

constexpr std::string_view kGzip{"\x1f\x8b", 2};
constexpr std::string_view kXz{
    "\xfd"
    "7zXZ\0",
    6};
constexpr std::string_view kZstd{"\x28\xb5\x2f\xfd", 4};
constexpr std::string_view kZstdSkippable{"\x2a\x4d\x18", 3};  // after a byte from 0x50 to 0x5f

// The file in chunks.
class File {
 public:
  explicit File(const std::string& path) : path_(path), file_(open_regular_file(path)), buffer_(kChunk) {}

  // What has been read and not been taken; empty only at the end of the file.
  std::span<const char> available() {
    if (begin_ == end_) fill();
    return std::span(buffer_).subspan(begin_, end_ - begin_);
  }
  void take(std::size_t count) { begin_ += count; }
  [[nodiscard]] std::uint64_t taken() const { return read_ - (end_ - begin_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void fill() {
    begin_ = end_ = 0;
    // A short read does not mean the end, and the first bytes must come together.
    while (end_ < buffer_.size()) {
      const ssize_t got = ::read(file_.get(), buffer_.data() + end_, buffer_.size() - end_);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(Status::io, "cannot read {}: {}", path_, reason_of(errno));
      if (got == 0) break;
      end_ += static_cast<std::size_t>(got);
      read_ += static_cast<std::uint64_t>(got);
    }
  }

  std::string path_;
  FileDescriptor file_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t read_ = 0;
};

class FileStream : public ByteStream {
 public:
  explicit FileStream(std::unique_ptr<File> file) : file_(std::move(file)) {}
  [[nodiscard]] std::uint64_t consumed() const override { return file_->taken(); }
  [[nodiscard]] bool compressed() const override { return true; }

 protected:
  [[noreturn]] void broken(std::string_view what) const {
    fail(Status::corrupt, "{}: cannot be uncompressed: {}", file_->path(), what);
  }
  [[noreturn]] void cut_short() const {
    fail(Status::corrupt, "{}: the compressed data ends too early (is the file cut short?)", file_->path());
  }
  File& file() { return *file_; }

 private:
  std::unique_ptr<File> file_;
};

class PlainStream final : public FileStream {
 public:
  using FileStream::FileStream;
  std::size_t read(std::span<char> out) override {
    const std::span<const char> in = file().available();
    const std::size_t count = std::min(in.size(), out.size());
    std::memcpy(out.data(), in.data(), count);
    file().take(count);
    return count;
  }
  [[nodiscard]] bool compressed() const override { return false; }
};

class GzipStream final : public FileStream {
 public:
  explicit GzipStream(std::unique_ptr<File> file) : FileStream(std::move(file)) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK) fail(Status::out_of_memory, "no memory to uncompress gzip");
  }
  ~GzipStream() override { inflateEnd(&stream_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  std::size_t read(std::span<char> out) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out == out.size()) {
      const std::span<const char> in = file().available();
      if (in.empty()) {
        if (inside_) cut_short();
        return 0;
      }
      if (!inside_) inflateReset(&stream_);  // members may follow one another
      inside_ = true;
      // zlib's pointer is not to const, though it does not write.
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
      stream_.avail_in = static_cast<uInt>(in.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      file().take(in.size() - stream_.avail_in);
      if (result == Z_STREAM_END) {
        inside_ = false;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        broken(stream_.msg != nullptr ? stream_.msg : "not gzip data");
      }
    }
    return out.size() - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  bool inside_ = false;
};

class XzStream final : public FileStream {
 public:
  explicit XzStream(std::unique_ptr<File> file) : FileStream(std::move(file)) {
    if (lzma_stream_decoder(&stream_, kMostMemory, LZMA_CONCATENATED) != LZMA_OK) {
      fail(Status::out_of_memory, "no memory to uncompress xz");
    }
  }
  ~XzStream() override { lzma_end(&stream_); }
  XzStream(const XzStream&) = delete;
  XzStream& operator=(const XzStream&) = delete;

  std::size_t read(std::span<char> out) override {
    stream_.next_out = reinterpret_cast<std::uint8_t*>(out.data());
    stream_.avail_out = out.size();
    while (stream_.avail_out == out.size() && !done_) {
      const std::span<const char> in = file().available();
      stream_.next_in = reinterpret_cast<const std::uint8_t*>(in.data());
      stream_.avail_in = in.size();
      const lzma_ret result = lzma_code(&stream_, in.empty() ? LZMA_FINISH : LZMA_RUN);
      file().take(in.size() - stream_.avail_in);
      if (result == LZMA_STREAM_END) {
        done_ = true;
      } else if (result == LZMA_BUF_ERROR) {
        cut_short();
      } else if (result != LZMA_OK) {
        broken(message_of(result));
      }
    }
    return out.size() - stream_.avail_out;
  }

 private:
  static const char* message_of(lzma_ret result) {
    switch (result) {
      case LZMA_MEM_ERROR:
      case LZMA_MEMLIMIT_ERROR:
        return "it takes more than 1 GiB of memory";
      case LZMA_FORMAT_ERROR:
        return "not xz data";
      case LZMA_OPTIONS_ERROR:
        return "it uses options that this xz library does not know";
      default:
        return "the xz data is damaged";
    }
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool done_ = false;
};

class ZstdStream final : public FileStream {
 public:
  explicit ZstdStream(std::unique_ptr<File> file) : FileStream(std::move(file)), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) fail(Status::out_of_memory, "no memory to uncompress zstd");
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 30);  // also what zstd --long made
  }
  ~ZstdStream() override { ZSTD_freeDStream(stream_); }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  std::size_t read(std::span<char> out) override {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos == 0) {
      const std::span<const char> bytes = file().available();
      // At the end of the file there may still be output to come.
      ZSTD_inBuffer from{bytes.data(), bytes.size(), 0};
      const std::size_t result = ZSTD_decompressStream(stream_, &to, &from);
      if (ZSTD_isError(result) != 0) broken(ZSTD_getErrorName(result));
      file().take(from.pos);
      if (!bytes.empty() || to.pos > 0) inside_ = result != 0;
      if (bytes.empty() && to.pos == 0) {
        if (inside_) cut_short();
        return 0;
      }
    }
    return to.pos;
  }

 private:
  ZSTD_DStream* stream_;
  bool inside_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const std::string& path) {
  auto file = std::make_unique<File>(path);
  const std::span<const char> bytes = file->available();
  const std::string_view start(bytes.data(), bytes.size());
  if (start.starts_with(kGzip)) return std::make_unique<GzipStream>(std::move(file));
  if (start.starts_with(kXz)) return std::make_unique<XzStream>(std::move(file));
  const bool skippable = start.size() > 4 && (static_cast<unsigned char>(start[0]) & 0xf0U) == 0x50U &&
                         start.substr(1).starts_with(kZstdSkippable);
  if (start.starts_with(kZstd) || skippable) return std::make_unique<ZstdStream>(std::move(file));
  return std::make_unique<PlainStream>(std::move(file));
}

}  // namespace qdelta
