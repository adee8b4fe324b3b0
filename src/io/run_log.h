// The log of a run: log.jsonl, one JSON object per line.
//
//   {"step":10,"tokens":5242880,"loss":9.81,"validation_loss":9.9,"learning_rate":1e-05,"gradient_norm":2.1,
//    "tokens_per_second":812345,"seconds":64.5,"skipped":0,"mfu":0.41}                       (on one line)
//
// Every line goes to the system as soon as it is complete, so a crash loses at most the one being written. A run that
// is resumed from a checkpoint repeats the steps after it; their old lines are cut off first, so that each step stands
// in the log once. Numbers that are not finite are written as null, which is what JSON has.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_descriptor.h"

namespace qdelta {

inline constexpr const char* kRunLogName = "log.jsonl";  // within the folder of a run

struct RunRecord {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::int64_t step = 0;    // counts from 1
  std::int64_t tokens = 0;  // trained on so far
  double loss = kUnknown;   // of the training batch, nats per token
  std::optional<double> validation_loss;
  double learning_rate = kUnknown;
  double gradient_norm = kUnknown;  // before clipping
  double tokens_per_second = kUnknown;
  double seconds = kUnknown;            // since the run began
  std::int64_t skipped = 0;             // steps so far that were not taken because their gradient was not finite
  std::map<std::string, double> extra;  // any other numbers, by name
};

// The number called `name` ("step", "loss", ..., or one of `extra`); nullopt where the record has none.
[[nodiscard]] std::optional<double> value_of(const RunRecord& record, std::string_view name);
// Names of what value_of finds in at least one of the records as a finite number, fixed ones first.
[[nodiscard]] std::vector<std::string> value_names(const std::vector<RunRecord>& records);

// Reads a log, also that of a run in progress: a last line without its newline that is no complete object is taken for
// one that was being written, and left out. Throws Error(io) if it cannot be read, and Error(corrupt) with the line's
// number where any other line is no such object.
[[nodiscard]] std::vector<RunRecord> read_run_log(const std::string& path);

// Appends all of it to a file open for appending, or, where a disk is full, nothing: half a record would make the next
// one unreadable as well. Throws Error(io).
void append_whole(const FileDescriptor& file, std::string_view bytes, const std::string& path);

// Writes a log. Not for several threads at once.
class RunLog {
 public:
  // For a new run. Throws Error(invalid_argument) if there already is a log with lines in it: it is someone's run.
  [[nodiscard]] static RunLog create(const std::string& path);
  // For a run that goes on after `step`: lines of later steps, and one that a crash cut short, are removed first. The
  // file is replaced as a whole, so that no moment leaves it half cut. A missing log is made. A last line that is
  // damaged is removed as well, and `say` gets a sentence about it.
  [[nodiscard]] static RunLog resume(const std::string& path, std::int64_t step,
                                     const std::function<void(const std::string&)>& say = {});

  [[nodiscard]] std::int64_t last_step() const { return last_step_; }
  // Steps must rise. Throws Error(io) if the line cannot be written.
  void append(const RunRecord& record);
  // Flushes what was appended to disk. Throws Error(io).
  void sync() const;

 private:
  RunLog(std::string path, std::int64_t last_step);

  std::string path_;
  FileDescriptor file_;
  std::int64_t last_step_ = 0;
};

}  // namespace qdelta
