#include "infer/state_format.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "core/error.h"
#include "core/hash.h"

namespace qdelta {
namespace {

std::uint64_t number(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  std::uint64_t value = 0;
  if (found != file.metadata().end()) {
    const char* end = found->second.data() + found->second.size();
    const auto read = std::from_chars(found->second.data(), end, value);
    if (read.ptr == end && read.ec == std::errc()) return value;
  }
  fail(Status::corrupt, "{} is no saved state: its '{}' is missing or no number", file.path(), key);
}

// One that must fit a signed type.
template <class T>
T number_up_to(const SafetensorsFile& file, const char* key) {
  const std::uint64_t value = number(file, key);
  if (value > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) {
    fail(Status::corrupt, "{}: its '{}' is {}, more than there can be", file.path(), key, value);
  }
  return static_cast<T>(value);
}

}  // namespace

std::uint64_t hash_tokens(std::uint64_t hash, std::span<const std::int32_t> tokens) {
  for (const std::int32_t& token : tokens) hash = hash_bytes(std::as_bytes(std::span(&token, 1)), hash);
  return hash;
}

StateHeader read_state_header(const SafetensorsFile& file) {
  StateHeader header;
  header.version = file.metadata().contains("version") ? number(file, "version") : 1;
  if (header.version < 1 || header.version > kStateVersion) {
    fail(Status::unsupported, "{} is a saved state of version {}; this program reads versions 1 to {}", file.path(),
         header.version, kStateVersion);
  }
  header.model_hash = number(file, header.version == 1 ? "model_hash" : "model_xxh3");
  header.info.tokens = number_up_to<std::int64_t>(file, "tokens");
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 48U;  // so that they can be counted on
  if (header.info.tokens > kMostTokens) {
    fail(Status::corrupt, "{}: it cannot have read {} tokens", file.path(), header.info.tokens);
  }
  header.info.token_hash = number(file, header.version == 1 ? "token_hash" : "token_xxh3");
  header.info.pending = number_up_to<std::int32_t>(file, "pending") - 1;
  return header;
}

ConstTensorView state_tensor(const SafetensorsFile& file, const std::string& name, const Shape& shape) {
  if (!file.contains(name))
    fail(Status::corrupt, "{}: it has no '{}', which this model's states have", file.path(), name);
  const ConstTensorView view = file.view(name);
  if (view.dtype != DType::f32 || !(view.shape == shape)) {
    fail(Status::corrupt, "{}: '{}' is {} {}, expected F32 {}", file.path(), name, name_of(view.dtype),
         view.shape.text(), shape.text());
  }
  return view;
}

std::vector<std::int32_t> state_token_ids(const SafetensorsFile& file, const StateHeader& header,
                                          std::int64_t vocab_size) {
  if (!file.contains(kStateTokenIds)) return {};
  const ConstTensorView view = file.view(kStateTokenIds);
  if (view.dtype != DType::i32 || view.shape.rank != 1 || view.extent(0) != header.info.tokens) {
    fail(Status::corrupt, "{}: '{}' is {} {}, expected I32 [{}]", file.path(), kStateTokenIds, name_of(view.dtype),
         view.shape.text(), header.info.tokens);
  }
  const auto* first = reinterpret_cast<const std::int32_t*>(view.data);
  std::vector<std::int32_t> ids(first, first + header.info.tokens);
  if (hash_tokens(0, ids) != header.info.token_hash) {
    fail(Status::corrupt, "{}: its tokens are not those it has read", file.path());
  }
  if (std::ranges::any_of(ids, [&](std::int32_t id) { return id < 0 || id >= vocab_size; })) {
    fail(Status::corrupt, "{}: it has read a token that is not among the {} of the vocabulary", file.path(),
         vocab_size);
  }
  return ids;
}

}  // namespace qdelta
