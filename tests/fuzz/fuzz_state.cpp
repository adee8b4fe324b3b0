// Feeds bytes to the reader of saved states, as it reads them for a model of one layer: as a file, and as the header of
// one that is framed and given a checksum that is right, which a mutation would break. Whatever it takes must be safe
// to copy from.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/memory.h"
#include "expect.h"
#include "infer/state_format.h"
#include "io/safetensors_checksum.h"
#include "state_case.h"

namespace {

using qdelta::fuzz::expect;
using qdelta::fuzz::kVocabulary;
using qdelta::fuzz::may_refuse;

volatile float sink;

void read_state(std::span<const std::byte> bytes) {
  may_refuse([&] {
    const auto file = qdelta::SafetensorsFile::parse(bytes, "fuzz");
    may_refuse([&] { static_cast<void>(file.verify(1)); });
    const qdelta::StateHeader header = qdelta::read_state_header(file);
    expect(header.info.tokens >= 0 && header.info.pending >= -1, "less than nothing");
    may_refuse([&] {
      for (const auto& [name, shape] : qdelta::fuzz::state_tensors()) {
        const qdelta::ConstTensorView view = qdelta::state_tensor(file, name, shape);
        std::vector<float> copy(static_cast<std::size_t>(shape.elements()));
        std::memcpy(copy.data(), view.data, copy.size() * sizeof(float));
        for (const float value : copy) sink = value;
      }
    });
    const std::vector<std::int32_t> ids = qdelta::state_token_ids(file, header, kVocabulary);
    expect(ids.empty() || ids.size() == static_cast<std::size_t>(header.info.tokens), "another number of tokens");
    for (const std::int32_t id : ids) expect(id >= 0 && id < kVocabulary, "a token outside the vocabulary");
  });
}

// The same tensors and metadata with the right checksum.
void read_sealed(std::span<const std::byte> bytes) {
  may_refuse([&] {
    const auto file = qdelta::SafetensorsFile::parse(bytes, "fuzz");
    std::vector<qdelta::NamedTensor> tensors;
    for (const std::string& name : file.names()) tensors.push_back({name, file.view(name)});
    auto metadata = file.metadata();
    const std::string sum = qdelta::safetensors_checksum(tensors, metadata, 1);
    expect(qdelta::is_checksum(sum), "a checksum that is none");
    metadata[qdelta::kChecksumKey] = sum;
    const std::string sealed = qdelta::fuzz::safetensors_file(tensors, metadata);
    qdelta::AlignedBuffer buffer(sealed.size());
    std::memcpy(buffer.data(), sealed.data(), sealed.size());
    const auto again = qdelta::SafetensorsFile::parse({buffer.data(), buffer.size()}, "fuzz");
    expect(again.verify(1), "a right checksum that is refused");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  qdelta::AlignedBuffer buffer(size);
  if (size > 0) std::memcpy(buffer.data(), data, size);
  const std::span<const std::byte> bytes{buffer.data(), buffer.size()};
  read_state(bytes);
  read_sealed(bytes);
  // As a header with 256 bytes of data behind it: most mutations change its length.
  const std::size_t length = (size + 7) / 8 * 8;
  qdelta::AlignedBuffer framed(8 + length + qdelta::fuzz::kDataBytes);
  std::memset(framed.data(), ' ', 8 + length);
  std::memset(framed.data() + 8 + length, 1, qdelta::fuzz::kDataBytes);
  const std::uint64_t header = length;
  std::memcpy(framed.data(), &header, sizeof(header));
  if (size > 0) std::memcpy(framed.data() + 8, data, size);
  read_state({framed.data(), framed.size()});
  return 0;
}
