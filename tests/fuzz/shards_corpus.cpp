// What fuzz_shards.cpp starts from: shards and an index of some, with the byte in front that says which.
#include <cstddef>
#include <cstdint>

#include "corpus.h"
#include "data/shard_format.h"

namespace {

constexpr std::string_view kIndex =
    R"({"format":"qdelta token shards","version":2,"tokenizer":"bytes","tokenizer_fingerprint":"0123456789abcdef",)"
    R"("vocab_size":258,"shards":[{"file":"tokens-00000.qdt","tokens":100,"documents":3},)"
    R"({"file":"tokens-00001.qdt","tokens":7,"documents":1}]})";

constexpr std::string_view kWords[] = {
    "../",           "..",         ".",        "\"version\":1", "\"version\":3", "1e9",
    "\"documents\"", "\"tokens\"", "QDTOKENS", "1099511627777"};

// A shard of so many documents of up to five tokens.
std::string shard(std::uint32_t vocab_size, std::size_t documents, std::uint32_t version = qdelta::kShardVersion) {
  qdelta::ShardHeader header;
  header.version = version;
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

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() {
  std::vector<std::string> all;
  for (const std::string& file :
       {shard(10, 1), shard(65536, 3), shard(65537, 7), shard(1000, 0), shard(258, 4, 1), shard(70000, 2, 1)}) {
    all.push_back(std::string(1, '\0').append(file));
  }
  all.push_back(std::string(1, '\1').append(kIndex));
  return all;
}

std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
