// A file as a stream of bytes, uncompressed on the way: plain, gzip, xz or zstd, told by its first bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace qdelta {

class ByteStream {
 public:
  ByteStream() = default;
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Fills `out`, which must not be empty, as far as there are bytes; 0 at the end. Throws Error(io) when the file
  // cannot be read, Error(corrupt) when what it holds cannot be uncompressed or ends too early.
  virtual std::size_t read(std::span<char> out) = 0;
  // Bytes of the file itself that have been read, to see how far it has come.
  [[nodiscard]] virtual std::uint64_t consumed() const = 0;
  // Whether what is read is not what the file holds, byte for byte.
  [[nodiscard]] virtual bool compressed() const = 0;
};

[[nodiscard]] std::unique_ptr<ByteStream> open_byte_stream(const std::string& path);

}  // namespace qdelta
