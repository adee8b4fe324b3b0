// Feeds bytes to the readers of src/data: as a shard and as a SentencePiece model. For tokenizer.json see
// fuzz_tokenizer.cpp.
//
// The first byte says which. A mutation of a shard nearly always breaks its checksum, so there it is also put right.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory.h"
#include "data/sentencepiece_model.h"
#include "data/shard_format.h"
#include "data/shards.h"
#include "expect.h"

namespace {

using qdelta::fuzz::expect;
using qdelta::fuzz::may_refuse;

void read_shard(std::string_view file) {
  qdelta::AlignedBuffer buffer(file.size());
  if (!file.empty()) std::memcpy(buffer.data(), file.data(), file.size());
  may_refuse([&] {
    const auto shard = qdelta::TokenShard::parse({buffer.data(), buffer.size()}, "fuzz");
    expect(static_cast<std::size_t>(shard.tokens()) <= file.size(), "more tokens than bytes");
    expect(shard.offsets().size() == static_cast<std::size_t>(shard.documents()) + 1, "offsets that do not fit");
    std::vector<std::int32_t> ids(static_cast<std::size_t>(shard.tokens()));
    may_refuse([&] {
      shard.copy(0, ids);
      for (const std::int32_t id : ids) expect(id >= 0 && id < shard.vocab_size(), "an id outside the vocabulary");
    });
    shard.verify();
  });
}

// The same with the checksum put right, as far as the sizes allow.
void read_sealed_shard(std::string file) {
  qdelta::ShardHeader header;
  if (file.size() < sizeof(header)) return;
  std::memcpy(&header, file.data(), sizeof(header));
  const std::size_t rest = file.size() - sizeof(header);
  if ((header.width != 2 && header.width != 4) || header.tokens > rest / header.width) return;
  const std::size_t data = qdelta::shard_data_bytes(header.tokens, header.width);
  if (data > rest || (rest - data) % 8 != 0 || rest == data) return;
  std::vector<std::uint64_t> offsets((rest - data) / 8);
  std::memcpy(offsets.data(), file.data() + sizeof(header) + data, offsets.size() * 8);
  header.documents = offsets.size() - 1;
  header.checksum = qdelta::shard_checksum(header, offsets);
  header.token_checksum =
      qdelta::shard_token_checksum(header.version, std::as_bytes(std::span(file)).subspan(sizeof(header), data));
  std::memcpy(file.data(), &header, sizeof(header));
  read_shard(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    read_shard(input);
    read_sealed_shard(std::string(input));
  } else {
    static_cast<void>(qdelta::read_sentencepiece_model(input));
  }
  return 0;
}
