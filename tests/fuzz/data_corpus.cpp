// What fuzz_data.cpp starts from: shards and SentencePiece models, with the byte in front that says which.
#include <cstddef>
#include <cstdint>

#include "corpus.h"
#include "data/shard_format.h"

namespace {

constexpr std::string_view kWords[] = {"<0x0A>", "\xe2\x96\x81", std::string_view("\0\0\0\0", 4), "QDT"};

// A shard of so many documents of up to five tokens.
std::string shard(std::uint32_t vocab_size, std::size_t documents) {
  qdelta::ShardHeader header;
  header.width = qdelta::shard_token_width(static_cast<std::int32_t>(vocab_size));
  header.vocab_size = vocab_size;
  header.documents = documents;
  std::vector<std::uint64_t> offsets{0};
  for (std::size_t i = 0; i < documents; ++i) offsets.push_back(offsets.back() + 1 + i % 5);
  header.tokens = offsets.back();
  const std::string tokens(qdelta::shard_data_bytes(header.tokens, header.width), '\0');
  header.checksum = qdelta::shard_checksum(header, offsets);
  header.token_checksum = qdelta::shard_token_checksum(header.version, std::as_bytes(std::span(tokens)));
  std::string file(reinterpret_cast<const char*>(&header), sizeof(header));
  file += tokens;
  return file.append(reinterpret_cast<const char*>(offsets.data()), offsets.size() * sizeof(offsets[0]));
}

// A field of a protocol buffer: a number, or bytes.
std::string number_field(int field, int value) { return {static_cast<char>(field * 8), static_cast<char>(value)}; }
std::string bytes_field(int field, const std::string& bytes) {
  return std::string{static_cast<char>(field * 8 + 2), static_cast<char>(bytes.size())} + bytes;
}
std::string sentencepiece_model() {
  return bytes_field(1, bytes_field(1, "<unk>") + number_field(3, 2)) +
         bytes_field(1, bytes_field(1, "a") + std::string("\x15\0\0\0\0", 5) + number_field(3, 4)) +
         bytes_field(2, number_field(3, 2)) +
         bytes_field(3, bytes_field(1, "identity") + number_field(3, 1) + number_field(4, 0)) +
         bytes_field(5, bytes_field(2, "x"));
}

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() {
  std::vector<std::string> all;
  struct Shape {
    std::uint32_t vocab_size;
    std::size_t documents;
  };
  for (const Shape shape : {Shape{10, 1}, Shape{65536, 3}, Shape{65537, 7}, Shape{1000, 0}}) {
    all.push_back(std::string(1, '\0').append(shard(shape.vocab_size, shape.documents)));
  }
  all.push_back(std::string(1, '\1').append(sentencepiece_model()));
  return all;
}

std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
