// Texts as gzip, xz and zstd write them.
#pragma once

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <stdexcept>
#include <string>

namespace qdelta::testing {

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  if (::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::runtime_error("zlib");
  std::string out(::deflateBound(&stream, text.size()), '\0');
  std::string in = text;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int end = ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  if (end != Z_STREAM_END) throw std::runtime_error("zlib");
  return out;
}
inline std::string xz(const std::string& text) {
  std::string out(::lzma_stream_buffer_bound(text.size()), '\0');
  std::size_t size = 0;
  if (::lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(text.data()),
                                text.size(), reinterpret_cast<std::uint8_t*>(out.data()), &size,
                                out.size()) != LZMA_OK) {
    throw std::runtime_error("lzma");
  }
  out.resize(size);
  return out;
}
inline std::string zstd(const std::string& text) {
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  out.resize(::ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

}  // namespace qdelta::testing
