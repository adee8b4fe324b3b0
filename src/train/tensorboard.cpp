#include "train/tensorboard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "io/run_log.h"

namespace qdelta {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78U;  // Castagnoli's, reflected
constexpr int kAttempts = 1000;                     // at a free name

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = crc_table();

template <class Unsigned>
void put_little_endian(std::string& to, Unsigned value) {
  for (std::size_t byte = 0; byte < sizeof(Unsigned); ++byte) {
    to.push_back(static_cast<char>(static_cast<unsigned char>(value >> (8 * byte))));
  }
}

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) to.push_back(static_cast<char>(static_cast<unsigned char>(value | 0x80U)));
  to.push_back(static_cast<char>(value));
}

// How a field's value is encoded.
enum class Wire : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_key(std::string& to, std::uint32_t field, Wire wire) {
  put_varint(to, (std::uint64_t{field} << 3U) | static_cast<std::uint64_t>(wire));
}
void put_bytes(std::string& to, std::uint32_t field, std::string_view bytes) {
  put_key(to, field, Wire::bytes);
  put_varint(to, bytes.size());
  to.append(bytes);
}

// The fields every event has.
std::string event(double wall_time, std::int64_t step) {
  std::string bytes;
  put_key(bytes, 1, Wire::fixed64);
  put_little_endian(bytes, std::bit_cast<std::uint64_t>(wall_time));
  if (step != 0) {  // as for every number of a message, 0 is what a missing one means
    put_key(bytes, 2, Wire::varint);
    put_varint(bytes, static_cast<std::uint64_t>(step));
  }
  return bytes;
}

// Of a tensor with one element.
std::string shape_of_one() {
  std::string dimension;
  put_key(dimension, 1, Wire::varint);
  put_varint(dimension, 1);
  std::string shape;
  put_bytes(shape, 2, dimension);
  return shape;
}

// `bytes` is an event as far as it goes; gets the one value of a plugin.
std::string plugin_event(std::string bytes, std::string_view tag, std::string_view plugin, std::string_view data,
                         std::string_view tensor) {
  std::string plugin_data;
  put_bytes(plugin_data, 1, plugin);
  if (!data.empty()) put_bytes(plugin_data, 2, data);
  std::string metadata;
  put_bytes(metadata, 1, plugin_data);
  put_key(metadata, 4, Wire::varint);
  put_varint(metadata, 2);  // a tensor
  std::string value;
  put_bytes(value, 1, tag);
  put_bytes(value, 8, tensor);
  put_bytes(value, 9, metadata);
  std::string summary;
  put_bytes(summary, 1, value);
  put_bytes(bytes, 5, summary);
  return bytes;
}

// A google.protobuf.Value.
std::string setting_value(std::string_view text) {
  std::string value;
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec == std::errc() && read.ptr == text.data() + text.size() && std::isfinite(number)) {
    put_key(value, 2, Wire::fixed64);
    put_little_endian(value, std::bit_cast<std::uint64_t>(number));
  } else if (text == "true" || text == "false") {
    put_key(value, 4, Wire::varint);
    put_varint(value, text == "true" ? 1 : 0);
  } else {
    put_bytes(value, 3, text);
  }
  return value;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Fit for a file name.
std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  std::string host = name.data();
  for (char& c : host) {
    if (c == '/') c = '_';
  }
  return host.empty() ? "unknown" : host;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char c : bytes) crc = (crc >> 8U) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xffU];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) noexcept { return std::rotr(crc32c(bytes), 15) + 0xa282ead8U; }

std::string tfrecord(std::string_view payload) {
  std::string record;
  put_little_endian(record, std::uint64_t{payload.size()});
  put_little_endian(record, masked_crc32c(record));
  record.append(payload);
  put_little_endian(record, masked_crc32c(payload));
  return record;
}

std::string file_version_event(double wall_time) {
  std::string bytes = event(wall_time, 0);
  put_bytes(bytes, 3, "brain.Event:2");
  return bytes;
}

std::string session_start_event(double wall_time, std::int64_t step) {
  std::string status;
  put_key(status, 1, Wire::varint);
  put_varint(status, 1);  // START
  std::string bytes = event(wall_time, step);
  put_bytes(bytes, 7, status);
  return bytes;
}

std::string scalars_event(double wall_time, std::int64_t step, const TensorBoardScalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, Wire::fixed32);
    put_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
    put_bytes(summary, 1, value);
  }
  std::string bytes = event(wall_time, step);
  put_bytes(bytes, 5, summary);
  return bytes;
}

std::string text_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view text) {
  std::string indented = "    ";
  for (const char c : text) {
    indented.push_back(c);
    if (c == '\n') indented += "    ";
  }
  std::string tensor;
  put_key(tensor, 1, Wire::varint);
  put_varint(tensor, 7);  // strings
  put_bytes(tensor, 2, shape_of_one());
  put_bytes(tensor, 8, indented);
  return plugin_event(event(wall_time, step), tag, "text", "", tensor);
}

std::string settings_event(double wall_time, const TensorBoardSettings& settings) {
  std::string start;
  for (const auto& [name, text] : settings) {
    std::string entry;
    put_bytes(entry, 1, name);
    put_bytes(entry, 2, setting_value(text));
    put_bytes(start, 1, entry);
  }
  put_key(start, 5, Wire::fixed64);
  put_little_endian(start, std::bit_cast<std::uint64_t>(wall_time));
  std::string data;  // its field 1, the version, is 0
  put_bytes(data, 3, start);
  std::string tensor;  // must be there, and is not looked at
  put_key(tensor, 1, Wire::varint);
  put_varint(tensor, 1);  // floats
  put_bytes(tensor, 2, shape_of_one());
  put_bytes(tensor, 5, std::string(sizeof(float), '\0'));
  return plugin_event(event(wall_time, 0), "_hparams_/session_start_info", "hparams", data, tensor);
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, std::int64_t resumed_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(Status::io, "cannot make the folder {} for TensorBoard: {}", folder, error.message());
  const double begin = wall_seconds();
  const std::string stem = fmt::format("{}/events.out.tfevents.{:010d}.{}.{}", folder, static_cast<std::int64_t>(begin),
                                       host_name(), ::getpid());
  for (int number = 0; number < kAttempts && !file_; ++number) {
    path_ = fmt::format("{}.{}", stem, number);
    file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (!file_ && errno != EEXIST) break;
  }
  if (!file_) fail(Status::io, "cannot write {}: {}", path_, reason_of(errno));
  append(file_version_event(begin));
  if (resumed_step > 0) append(session_start_event(begin, resumed_step + 1));
}

void TensorBoardWriter::write(std::int64_t step, const TensorBoardScalars& scalars) {
  append(scalars_event(wall_seconds(), step, scalars));
}

void TensorBoardWriter::write_text(std::int64_t step, std::string_view tag, std::string_view text) {
  append(text_event(wall_seconds(), step, tag, text));
}

void TensorBoardWriter::write_settings(const TensorBoardSettings& settings) {
  append(settings_event(wall_seconds(), settings));
}

void TensorBoardWriter::append(const std::string& event) { append_whole(file_, tfrecord(event), path_); }

}  // namespace qdelta
