// Feeds bytes to the readers of src/data: as a shard, as a SentencePiece model, and as a tokenizer.json, which then has
// to encode and decode.
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
#include "data/json_tokenizer.h"
#include "data/sentencepiece_model.h"
#include "data/shard_format.h"
#include "data/shards.h"
#include "data/tokenizer.h"
#include "expect.h"
#include "io/untrusted_text.h"

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

constexpr std::string_view kTexts[] = {"", "abcab", "  Hello, wor\xc3\xa9ld! 123\n\n\t x'll ",
                                       "<s>a</s> <0x0A> \xe2\x96\x81 \xe6\xb2\xb3\xf0\x9f\x98\x80 e\xcc\x81",
                                       "\xff\xe2\x96"};

void read_tokenizer(std::string_view file) {
  may_refuse([&] {
    const auto tokenizer = qdelta::make_json_tokenizer(std::string(file), "fuzz", {}, {});
    for (const std::string_view text : kTexts) {
      may_refuse([&] {
        const std::vector<std::int32_t> ids = tokenizer->encode(text);
        for (const std::int32_t id : ids)
          expect(id >= 0 && id < tokenizer->vocab_size(), "an id outside the vocabulary");
        expect(!qdelta::first_invalid_utf8(tokenizer->decode(ids)), "a text that is not UTF-8");
        qdelta::TokenStream stream(*tokenizer);
        for (const std::int32_t id : ids) expect(!qdelta::first_invalid_utf8(stream.push(id)), "a broken piece");
        static_cast<void>(stream.finish());
      });
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      read_shard(input);
      read_sealed_shard(std::string(input));
      break;
    case 1:
      read_tokenizer(input);
      break;
    default:
      static_cast<void>(qdelta::read_sentencepiece_model(input));
  }
  return 0;
}
