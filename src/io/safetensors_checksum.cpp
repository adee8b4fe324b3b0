#include "io/safetensors_checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "core/threads.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr std::string_view kChecksumPrefix = "xxh3:";
constexpr std::size_t kDigits = 16;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20U;

// The bytes of row-major tensors in pieces, one tensor after the other.
std::vector<std::span<const std::byte>> pieces_of(std::span<const NamedTensor* const> tensors) {
  std::vector<std::span<const std::byte>> pieces;
  for (const NamedTensor* tensor : tensors) {
    const ConstTensorView& view = tensor->view;
    const std::uint64_t bytes = safetensors_bytes(view.shape, view.dtype).value_or(0);
    for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
      pieces.emplace_back(view.data + at, std::min<std::uint64_t>(kPieceBytes, bytes - at));
    }
  }
  return pieces;
}

void add_word(std::string& text, std::string_view word) { text.append(word).push_back('\0'); }

}  // namespace

bool is_checksum(std::string_view text) noexcept {
  return text.size() == kChecksumPrefix.size() + kDigits && text.starts_with(kChecksumPrefix) &&
         text.find_first_not_of("0123456789abcdef", kChecksumPrefix.size()) == std::string_view::npos;
}

std::string safetensors_checksum(std::span<const NamedTensor> tensors,
                                 const std::map<std::string, std::string>& metadata, int threads) {
  std::vector<const NamedTensor*> sorted;
  for (const NamedTensor& tensor : tensors) sorted.push_back(&tensor);
  std::ranges::sort(sorted, {}, [](const NamedTensor* tensor) -> const std::string& { return tensor->name; });
  const auto pieces = pieces_of(sorted);
  std::vector<std::uint64_t> hashes(pieces.size());
  parallel_for(static_cast<std::int64_t>(pieces.size()), thread_count(threads), [&](std::int64_t at, int /*worker*/) {
    hashes[static_cast<std::size_t>(at)] = hash_bytes(pieces[static_cast<std::size_t>(at)]);
  });

  std::string text;
  for (const auto& [key, value] : metadata) {
    for (const std::string_view word : {std::string_view("metadata"), std::string_view(key), std::string_view(value)}) {
      add_word(text, word);
    }
  }
  std::size_t next = 0;
  for (const NamedTensor* tensor : sorted) {
    const Shape& shape = tensor->view.shape;
    const auto extents = std::span(shape.extent).first(static_cast<std::size_t>(shape.rank));
    add_word(text, "tensor");
    add_word(text, tensor->name);
    add_word(text, name_of(tensor->view.dtype));
    add_word(text, fmt::format("{}", fmt::join(extents, ",")));
    const std::size_t count = pieces_of({&tensor, 1}).size();
    for (std::size_t i = 0; i < count; ++i) add_word(text, fmt::format("{:016x}", hashes[next++]));
  }
  return fmt::format("{}{:016x}", kChecksumPrefix, hash_bytes(std::as_bytes(std::span(text))));
}

bool SafetensorsFile::verify(int threads) const {
  if (!checksum_) {
    // One wrong bit in the key must not make it a file without a checksum.
    for (const auto& [key, value] : metadata_) {
      if (!is_checksum(value)) continue;
      fail(Status::corrupt, "{} is damaged: its checksum is called {} instead of \"{}\"", path_, shown(key),
           kChecksumKey);
    }
    return false;
  }
  std::vector<NamedTensor> tensors;
  for (const auto& [name, view] : tensors_) tensors.push_back({name, view});
  const std::string found = safetensors_checksum(tensors, metadata_, threads);
  if (found == *checksum_) return true;
  fail(Status::corrupt,
       "{} is damaged: its contents have the checksum {}, but it was written with {} (or a program changed it and kept "
       "the old one: then it must remove \"{}\" from the metadata)",
       path_, found, shown(*checksum_), kChecksumKey);
}

}  // namespace qdelta
