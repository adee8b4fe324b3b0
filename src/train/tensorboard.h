// TensorBoard event files, written without TensorFlow.
//
// A file is a sequence of TFRecords, all numbers little-endian:
//
//   uint64 length | uint32 masked CRC32C of the length | length bytes | uint32 masked CRC32C of those bytes
//
// Each holds an Event in protocol-buffer encoding, of which these fields are used:
//
//   Event      1 wall_time double   2 step int64   3 file_version string   5 summary Summary   7 session_log SessionLog
//   Summary    1 value, repeated Value
//   Value      1 tag string   2 simple_value float
//   SessionLog 1 status (1: START)
//
// The first event of a file says "brain.Event:2".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/file_descriptor.h"

namespace qdelta {

using TensorBoardScalars = std::vector<std::pair<std::string, double>>;  // tag ("train/loss") and value

// Castagnoli's CRC, and the form TFRecords store: a CRC of data that itself contains CRCs would be weak.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes) noexcept;
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

// The bytes of one record, and of the three events that are put into them. Wall times are seconds since 1970.
[[nodiscard]] std::string tfrecord(std::string_view payload);
[[nodiscard]] std::string file_version_event(double wall_time);
[[nodiscard]] std::string session_start_event(double wall_time, std::int64_t step);
[[nodiscard]] std::string scalars_event(double wall_time, std::int64_t step, const TensorBoardScalars& scalars);

class TensorBoardWriter {
 public:
  // Begins a new file events.out.tfevents.<seconds>.<host>.<process>.<number> in the folder, which is made if it is
  // missing. A run resumed after `resumed_step` > 0 tells readers to forget what earlier files say of later steps.
  // Throws Error(io).
  explicit TensorBoardWriter(const std::string& folder, std::int64_t resumed_step = 0);

  // One event, handed to the system at once. Throws Error(io).
  void write(std::int64_t step, const TensorBoardScalars& scalars);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  void append(const std::string& event);

  std::string path_;
  FileDescriptor file_;
};

}  // namespace qdelta
