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
//   Value      1 tag string   2 simple_value float   8 tensor Tensor   9 metadata Metadata
//   Tensor     1 dtype (1: float, 7: string)   2 shape, of dimensions   5 float_val   8 string_val
//   Metadata   1 plugin (1 its name, 2 its data)   4 kind of data (2: tensor)
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

// Names and values of a run's settings: numbers and true or false are stored as such.
using TensorBoardSettings = std::vector<std::pair<std::string, std::string>>;
using TensorBoardScalars = std::vector<std::pair<std::string, double>>;  // tag ("train/loss") and value

// Castagnoli's CRC, and the form TFRecords store: a CRC of data that itself contains CRCs would be weak.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes) noexcept;
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

// The bytes of one record, and of the events that are put into them. Wall times are seconds since 1970.
[[nodiscard]] std::string tfrecord(std::string_view payload);
[[nodiscard]] std::string file_version_event(double wall_time);
[[nodiscard]] std::string session_start_event(double wall_time, std::int64_t step);
[[nodiscard]] std::string scalars_event(double wall_time, std::int64_t step, const TensorBoardScalars& scalars);

// A text, for the plugin of that name, which reads it as Markdown; it is shown as it is, indented.
[[nodiscard]] std::string text_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view text);
// The settings of a run, for the plugin of hyperparameters: HParamsPluginData with 3 session_start_info, which has
// 1 hparams (a map to 2 double, 3 string or 4 bool) and 5 start_time_secs.
[[nodiscard]] std::string settings_event(double wall_time, const TensorBoardSettings& settings);

class TensorBoardWriter {
 public:
  // Begins a new file events.out.tfevents.<seconds>.<host>.<process>.<number> in the folder, which is made if it is
  // missing. A run resumed after `resumed_step` > 0 tells readers to forget what earlier files say of later steps.
  // Throws Error(io).
  explicit TensorBoardWriter(const std::string& folder, std::int64_t resumed_step = 0);

  // One event, handed to the system at once. Throws Error(io).
  void write(std::int64_t step, const TensorBoardScalars& scalars);
  void write_text(std::int64_t step, std::string_view tag, std::string_view text);
  void write_settings(const TensorBoardSettings& settings);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  void append(const std::string& event);

  std::string path_;
  FileDescriptor file_;
};

}  // namespace qdelta
