#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"
#include "io/safetensors_checksum.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr std::size_t kWidestElement = 8;

// What a tensor without elements points at: "given", and aligned for every type, wherever the file puts it.
alignas(kAlignment) constexpr std::byte kNothing[kAlignment]{};

// How many letters must be changed, added or removed to make `a` of `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// "; did you mean ...?" with the names nearest to one that is not there; empty when none is near.
std::string suggestion(std::string_view name, const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3, kLongestName = 256, kMostCompared = 20'000;  // so that an error takes no time
  const std::size_t limit = std::max<std::size_t>(2, name.size() / 3);
  std::vector<std::pair<std::size_t, const std::string*>> near;
  for (std::size_t i = 0; i < std::min(names.size(), kMostCompared) && name.size() <= kLongestName; ++i) {
    const std::string& candidate = names[i];
    if (candidate.size() > name.size() + limit || candidate.size() + limit < name.size()) continue;
    const std::size_t distance = edit_distance(name, candidate);
    if (distance <= limit) near.emplace_back(distance, &candidate);
  }
  if (near.empty()) return "";
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  near.resize(std::min(near.size(), kMost));
  std::string text = "; did you mean ";
  for (std::size_t i = 0; i < near.size(); ++i) text += (i == 0 ? "" : " or ") + shown(*near[i].second);
  return text + "?";
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result;
  result.path_ = path;
  result.file_ = MappedFile(path);
  result.read(result.file_.bytes());
  return result;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string label) {
  require(reinterpret_cast<std::uintptr_t>(bytes.data()) % kWidestElement == 0,
          "{}: a file in memory must start at an address that is a multiple of {}", label, kWidestElement);
  SafetensorsFile result;
  result.path_ = std::move(label);
  result.read(bytes);
  return result;
}

void SafetensorsFile::read(std::span<const std::byte> bytes) {
  SafetensorsHeader header = parse_safetensors_header(bytes, path_);
  const std::byte* data = bytes.data() + header.data_start;
  names_.reserve(header.tensors.size());
  for (SafetensorsEntry& entry : header.tensors) {
    const std::byte* first = entry.begin == entry.end ? kNothing : data + entry.begin;
    tensors_.emplace(entry.name, ConstTensorView(first, entry.dtype, entry.shape));
    names_.push_back(std::move(entry.name));
  }
  metadata_ = std::move(header.metadata);
  if (auto own = metadata_.extract(kChecksumKey)) checksum_ = std::move(own.mapped());
}

ConstTensorView SafetensorsFile::view(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    fail(Status::invalid_argument, "{}: no tensor {} among the {} in the file{}", path_, shown(name), names_.size(),
         suggestion(name, names_));
  }
  return found->second;
}

}  // namespace qdelta
