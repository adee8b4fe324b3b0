#include "io/safetensors_header.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "io/parse_json.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

static_assert(std::endian::native == std::endian::little, "views of a file need its byte order to be the machine's");

using Json = nlohmann::json;

constexpr std::size_t kLongestNumberShown = 40;

// Takes the header's JSON apart as it is parsed. A document tree would not do: it silently keeps one of two equal keys,
// and a hostile one can be made to cost many times its size. The grammar is three levels deep, and whatever opens a
// fourth is refused on the spot, so nesting costs nothing either.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(const std::string& label, std::size_t data_start, std::uint64_t data_bytes)
      : label_(label), data_start_(data_start), data_bytes_(data_bytes) {}

  SafetensorsHeader take() {
    SafetensorsHeader header;
    header.tensors = std::move(entries_);
    header.metadata = std::move(metadata_);
    header.data_start = data_start_;
    return header;
  }

  bool null() override { wrong_type("null"); }
  bool boolean(bool value) override { wrong_type(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { wrong_type(value == 0 ? "-0" : std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override {
    wrong_type(text.size() <= kLongestNumberShown ? text : text.substr(0, kLongestNumberShown) + "...");
  }
  bool binary(binary_t&) override { wrong_type("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) too_many_elements();
      if (rank_ < kMaxRank) entry_.shape.extent[rank_] = static_cast<std::int64_t>(value);
      ++rank_;
    } else if (place_ == Place::offsets) {
      if (offsets_ == 0) entry_.begin = value;
      if (offsets_ == 1) entry_.end = value;
      ++offsets_;
    } else {
      wrong_type(std::to_string(value));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      metadata_[key_] = value;
    } else if (place_ == Place::entry && key_ == "dtype") {
      set_dtype(value);
    } else {
      wrong_type(shown(value));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top) {
      place_ = key_ == kSafetensorsMetadata ? Place::metadata : Place::entry;
    } else {
      wrong_type("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    switch (place_) {
      case Place::top:
        if (!names_.insert(value).second) corrupt("the key {} appears twice", shown(value));
        if (value != kSafetensorsMetadata) {
          entry_ = SafetensorsEntry{};
          entry_.name = value;
          fields_.clear();
        }
        break;
      case Place::metadata:
        if (metadata_.contains(value)) corrupt("__metadata__: the key {} appears twice", shown(value));
        break;
      default:  // an entry: there are no keys elsewhere
        if (value != "dtype" && value != "shape" && value != "data_offsets") {
          corrupt("tensor {}: unknown key {}; an entry has dtype, shape and data_offsets", tensor(), shown(value));
        }
        if (!fields_.insert(value).second) corrupt("tensor {}: the key {} appears twice", tensor(), shown(value));
    }
    key_ = std::move(value);
    return true;
  }

  bool end_object() override {
    if (place_ == Place::entry) finish_entry();
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::entry && key_ == "shape") {
      place_ = Place::shape;
      rank_ = 0;
    } else if (place_ == Place::entry && key_ == "data_offsets") {
      place_ = Place::offsets;
      offsets_ = 0;
    } else {
      wrong_type("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::shape) {
      if (rank_ > kMaxRank) {
        fail(Status::unsupported, "{}: tensor {} has {} dimensions; at most {} are supported", label_, tensor(), rank_,
             kMaxRank);
      }
      entry_.shape.rank = static_cast<int>(rank_);
    } else if (offsets_ != 2) {
      corrupt("tensor {}: data_offsets must be two integers [begin, end], not {}", tensor(), offsets_);
    }
    place_ = Place::entry;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    std::string_view reason = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
    if (const std::size_t tag = reason.find("] "); tag != std::string_view::npos) reason.remove_prefix(tag + 2);
    corrupt("the header is not valid JSON: {}", shown(reason));
  }

  // After the last entry. The reference implementation refuses overlaps, holes and tails too.
  void check_coverage() {
    std::stable_sort(entries_.begin(), entries_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    const SafetensorsEntry* before = nullptr;
    std::uint64_t covered = 0;
    for (const SafetensorsEntry& entry : entries_) {
      if (entry.begin < covered) {
        corrupt("tensors {} and {} overlap: bytes [{}, {}) and [{}, {}) of the data", shown(before->name),
                shown(entry.name), before->begin, before->end, entry.begin, entry.end);
      }
      if (entry.begin > covered) {
        corrupt("bytes [{}, {}) of the data, before tensor {}, belong to no tensor", covered, entry.begin,
                shown(entry.name));
      }
      covered = entry.end;
      before = &entry;
    }
    if (covered != data_bytes_) {
      corrupt(
          "the last {} bytes of the file belong to no tensor: the header describes {} bytes of data, the file has {}",
          data_bytes_ - covered, covered, data_bytes_);
    }
  }

 private:
  enum class Place { outside, top, metadata, entry, shape, offsets };

  template <class... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(Status::corrupt, label_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  [[nodiscard]] std::string tensor() const { return shown(entry_.name); }

  // The value at hand is not what its place asks for.
  [[noreturn]] void wrong_type(std::string_view got) const {
    switch (place_) {
      case Place::outside:
        corrupt("the header must be a JSON object, not {}", got);
      case Place::top:
        if (key_ == kSafetensorsMetadata) corrupt("__metadata__ must be an object of strings, not {}", got);
        corrupt("tensor {}: must be an object with dtype, shape and data_offsets, not {}", tensor(), got);
      case Place::metadata:
        corrupt("__metadata__: the value of {} must be a string, not {}", shown(key_), got);
      case Place::shape:
        corrupt("tensor {}: shape must hold non-negative integers, not {}", tensor(), got);
      case Place::offsets:
        corrupt("tensor {}: data_offsets must hold non-negative integers, not {}", tensor(), got);
      case Place::entry:
        break;
    }
    const char* wanted = key_ == "dtype"   ? "a string such as \"F32\""
                         : key_ == "shape" ? "an array of integers"
                                           : "an array of two integers [begin, end]";
    corrupt("tensor {}: {} must be {}, not {}", tensor(), key_, wanted, got);
  }

  [[noreturn]] void too_many_elements() const {
    corrupt("tensor {}: its shape asks for more bytes than 64 bits can count", tensor());
  }

  void set_dtype(const std::string& name) {
    const std::optional<DType> type = dtype_from_name(name);
    if (type) {
      entry_.dtype = *type;
      return;
    }
    corrupt("tensor {}: unknown dtype {}", tensor(), shown(name));
  }

  void finish_entry() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) corrupt("tensor {}: {} is missing", tensor(), field);
    }
    const SafetensorsEntry& e = entry_;
    if (e.begin > e.end) {
      corrupt("tensor {}: data_offsets [{}, {}] end before they begin", tensor(), e.begin, e.end);
    }
    if (e.end > data_bytes_) {
      corrupt(
          "tensor {}: data_offsets [{}, {}] reach past the end of the file, which has {} bytes of data (is it cut "
          "short?)",
          tensor(), e.begin, e.end, data_bytes_);
    }
    const std::optional<std::uint64_t> bytes = safetensors_bytes(e.shape, e.dtype);
    if (!bytes && bits_of(e.dtype) < 8) {
      corrupt("tensor {}: {} of shape {} do not fill whole bytes, or more than can be counted", tensor(),
              name_of(e.dtype), e.shape.text());
    }
    if (!bytes) too_many_elements();
    if (*bytes != e.end - e.begin) {
      corrupt("tensor {}: {} of shape {} takes {} bytes, but data_offsets [{}, {}] give it {}", tensor(),
              name_of(e.dtype), e.shape.text(), *bytes, e.begin, e.end, e.end - e.begin);
    }
    // The format does not ask for alignment, typed loads do. What has no elements is never loaded.
    const std::uint64_t position = data_start_ + e.begin;
    if (*bytes != 0 && position % size_of(e.dtype) != 0) {
      corrupt(
          "tensor {}: its data starts at byte {} of the file, which is not a multiple of {}, the size of {}; saving "
          "the file again with a current safetensors library aligns it",
          tensor(), position, size_of(e.dtype), name_of(e.dtype));
    }
    entries_.push_back(std::move(entry_));
  }

  const std::string& label_;
  std::size_t data_start_;
  std::uint64_t data_bytes_;

  Place place_ = Place::outside;
  std::string key_;
  SafetensorsEntry entry_;                     // the one being read
  std::set<std::string, std::less<>> fields_;  // of it, so far
  std::size_t rank_ = 0;
  std::size_t offsets_ = 0;

  std::set<std::string, std::less<>> names_;  // at the top, so far
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The header's text, once its length is known to be sound.
std::string_view header_text(std::span<const std::byte> file, const std::string& label) {
  if (file.size() < kSafetensorsLengthBytes) {
    fail(Status::corrupt, "{}: not a safetensors file: {} bytes, shorter than the 8 that give the header's length",
         label, file.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kSafetensorsLengthBytes);
  const std::size_t rest = file.size() - kSafetensorsLengthBytes;
  if (length == 0) fail(Status::corrupt, "{}: the header's length is 0; even a file without tensors has {{}}", label);
  if (length > kSafetensorsLongestHeader) {
    fail(Status::corrupt, "{}: not a safetensors file: a header of {} bytes; at most {} are allowed", label, length,
         kSafetensorsLongestHeader);
  }
  if (length > rest) {
    fail(Status::corrupt, "{}: the header should have {} bytes, but only {} follow (is the file cut short?)", label,
         length, rest);
  }
  return {reinterpret_cast<const char*>(file.data()) + kSafetensorsLengthBytes, static_cast<std::size_t>(length)};
}

}  // namespace

std::optional<std::uint64_t> safetensors_bytes(const Shape& shape, DType dtype) noexcept {
  const bool packed = bits_of(dtype) < 8;
  auto size = static_cast<std::int64_t>(packed ? bits_of(dtype) : size_of(dtype));  // in bits, or in bytes
  bool empty = false;
  for (int axis = 0; axis < shape.rank; ++axis) {
    if (shape[axis] < 0) return std::nullopt;
    if (shape[axis] == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(size, shape[axis], &size)) {
      return std::nullopt;
    }
  }
  if (empty) return 0;
  if (packed && size % 8 != 0) return std::nullopt;
  return static_cast<std::uint64_t>(packed ? size / 8 : size);
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& label) {
  const std::string_view text = header_text(file, label);
  if (text.front() != '{') fail(Status::corrupt, "{}: not a safetensors file: the header must start with '{{'", label);
  if (const auto at = first_invalid_utf8(text)) {
    fail(Status::corrupt, "{}: the header is not valid UTF-8 at byte {}", label, *at + kSafetensorsLengthBytes);
  }
  // JSON has no NUL, but the parser takes one for the end of its input and would not look at what follows.
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
    fail(Status::corrupt, "{}: the header is not valid JSON: NUL at byte {}", label, at + kSafetensorsLengthBytes);
  }

  const std::size_t data_start = kSafetensorsLengthBytes + text.size();
  HeaderReader reader(label, data_start, file.size() - data_start);
  read_json_events(text, reader);
  reader.check_coverage();
  return reader.take();
}

}  // namespace qdelta
