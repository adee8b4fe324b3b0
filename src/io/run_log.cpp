#include "io/run_log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/parse_json.h"
#include "io/regular_file.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<std::string_view, 9> kFixedNames = {
    "step",    "tokens", "loss", "validation_loss", "learning_rate", "gradient_norm", "tokens_per_second",
    "seconds", "skipped"};

bool is_fixed(std::string_view name) {
  for (const std::string_view fixed : kFixedNames) {
    if (fixed == name) return true;
  }
  return false;
}

std::string line_of(const RunRecord& record) {
  OrderedJson json;
  json["step"] = record.step;
  json["tokens"] = record.tokens;
  json["loss"] = record.loss;
  if (record.validation_loss) json["validation_loss"] = *record.validation_loss;
  json["learning_rate"] = record.learning_rate;
  json["gradient_norm"] = record.gradient_norm;
  json["tokens_per_second"] = record.tokens_per_second;
  json["seconds"] = record.seconds;
  json["skipped"] = record.skipped;
  for (const auto& [name, value] : record.extra) {
    require(!is_fixed(name), "an extra number of the log may not be called '{}': the record has a field of that name",
            name);
    require(!first_invalid_utf8(name), "the name {} of an extra number is not UTF-8", shown(name));
    json[name] = value;
  }
  return json.dump() + '\n';
}

// The field as a number; null is what a number that is not finite was written as.
double number_of(const OrderedJson& field, std::string_view name) {
  if (field.is_null()) return RunRecord::kUnknown;
  if (!field.is_number()) fail(Status::corrupt, "'{}' is {}, not a number", name, field.dump());
  return field.get<double>();
}

std::int64_t whole_number_of(const OrderedJson& field, std::string_view name) {
  // Another program may have written 1e3 or 1000.0, which is whole all the same.
  const double number = number_of(field, name);
  if (field.is_number_integer() && number > -9e18 && number < 9e18) return field.get<std::int64_t>();
  if (!(std::abs(number) < 0x1p53) || number != std::floor(number)) {
    fail(Status::corrupt, "'{}' is {}, not a whole number", name, field.dump());
  }
  return static_cast<std::int64_t>(number);
}

// Throws Error(corrupt) that says what is wrong with the line.
RunRecord record_of(std::string_view line) {
  const OrderedJson json = parse_ordered_json(line, "the line", kSmallJson);
  if (!json.is_object()) fail(Status::corrupt, "{} is no JSON object", shown(line));
  if (!json.contains("step")) fail(Status::corrupt, "it has no 'step'");
  RunRecord record;
  for (const auto& [name, field] : json.items()) {
    if (name == "step") {
      record.step = whole_number_of(field, name);
    } else if (name == "tokens") {
      record.tokens = whole_number_of(field, name);
    } else if (name == "skipped") {
      record.skipped = whole_number_of(field, name);
    } else if (name == "loss") {
      record.loss = number_of(field, name);
    } else if (name == "validation_loss") {
      record.validation_loss = number_of(field, name);
    } else if (name == "learning_rate") {
      record.learning_rate = number_of(field, name);
    } else if (name == "gradient_norm") {
      record.gradient_norm = number_of(field, name);
    } else if (name == "tokens_per_second") {
      record.tokens_per_second = number_of(field, name);
    } else if (name == "seconds") {
      record.seconds = number_of(field, name);
    } else if (field.is_number() || field.is_null()) {
      record.extra[name] = number_of(field, name);
    }  // what is no number was left by someone else, for someone else
  }
  return record;
}

struct LogLine {
  std::string_view text;  // without its newline
  RunRecord record;
};

// The lines of a log with their records; empty lines and a last one cut short are left out. With `damage` a last line
// that is whole but no record is left out, too, and what is wrong with it is stored there.
std::vector<LogLine> lines_of(std::string_view contents, const std::string& path, std::string* damage = nullptr) {
  std::vector<LogLine> lines;
  std::size_t number = 0;
  for (std::size_t at = 0; at < contents.size();) {
    const std::size_t end = contents.find('\n', at);
    const bool complete = end != std::string_view::npos;
    const std::string_view text = contents.substr(at, complete ? end - at : std::string_view::npos);
    at = complete ? end + 1 : contents.size();
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      lines.push_back({text, record_of(text)});
    } catch (const Error& error) {
      if (!complete) continue;
      const std::string problem = fmt::format("line {} of the log {}: {}", number, path, error.what());
      if (damage == nullptr || at < contents.size()) fail(Status::corrupt, "{}", problem);
      *damage = problem;
    }
  }
  return lines;
}

}  // namespace

std::optional<double> value_of(const RunRecord& record, std::string_view name) {
  if (name == "step") return static_cast<double>(record.step);
  if (name == "tokens") return static_cast<double>(record.tokens);
  if (name == "loss") return record.loss;
  if (name == "validation_loss") return record.validation_loss;
  if (name == "learning_rate") return record.learning_rate;
  if (name == "gradient_norm") return record.gradient_norm;
  if (name == "tokens_per_second") return record.tokens_per_second;
  if (name == "seconds") return record.seconds;
  if (name == "skipped") return static_cast<double>(record.skipped);
  const auto found = record.extra.find(std::string(name));
  if (found == record.extra.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> value_names(const std::vector<RunRecord>& records) {
  std::set<std::string> extra;
  for (const RunRecord& record : records) {
    for (const auto& [name, value] : record.extra) {
      if (std::isfinite(value)) extra.insert(name);
    }
  }
  std::vector<std::string> names;
  for (const std::string_view name : kFixedNames) {
    for (const RunRecord& record : records) {
      if (!std::isfinite(value_of(record, name).value_or(RunRecord::kUnknown))) continue;
      names.emplace_back(name);
      break;
    }
  }
  names.insert(names.end(), extra.begin(), extra.end());
  return names;
}

std::vector<RunRecord> read_run_log(const std::string& path) {
  const std::optional<std::string> contents = read_text_file_if_there(path);
  if (!contents) fail(Status::io, "cannot read the log {}: {}", path, reason_of(ENOENT));
  std::vector<RunRecord> records;
  for (LogLine& line : lines_of(*contents, path)) records.push_back(std::move(line.record));
  return records;
}

void append_whole(const FileDescriptor& file, std::string_view bytes, const std::string& path) {
  struct stat info {};
  const bool sized = ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      const bool undone = sized && ::ftruncate(file.get(), info.st_size) == 0;
      fail(Status::io, "cannot write {}: {}{}", path, reason_of(error), undone ? "" : "; it may end in half a record");
    }
    done += static_cast<std::size_t>(written);
  }
}

RunLog RunLog::create(const std::string& path) {
  const std::string before = read_text_file_if_there(path).value_or("");
  if (before.find_first_not_of(" \t\r\n") != std::string::npos) {
    fail(Status::invalid_argument,
         "there already is the log of a run at {}: resume that run, choose another folder, or move the log away", path);
  }
  return {path, 0};
}

RunLog RunLog::resume(const std::string& path, std::int64_t step, const std::function<void(const std::string&)>& say) {
  require(step >= 0, "cannot resume the log {} after step {}: steps count from 1", path, step);
  const std::string before = read_text_file_if_there(path).value_or("");
  std::string kept;
  std::int64_t last_step = 0;
  std::string damage;
  const std::vector<LogLine> lines = lines_of(before, path, &damage);
  if (!damage.empty() && say) say(damage + "\nThat is its last line, which is damaged; it is removed.");
  for (const LogLine& line : lines) {
    if (line.record.step > step) continue;
    kept.append(line.text).push_back('\n');
    last_step = std::max(last_step, line.record.step);
  }
  if (kept != before) write_whole(path, kept);
  return {path, last_step};
}

RunLog::RunLog(std::string path, std::int64_t last_step)
    : path_(std::move(path)), file_(open_regular_file_to_append(path_)), last_step_(last_step) {}

void RunLog::append(const RunRecord& record) {
  require(record.step > last_step_, "the log {} already goes to step {}; step {} cannot follow", path_, last_step_,
          record.step);
  append_whole(file_, line_of(record), path_);
  last_step_ = record.step;
}

void RunLog::sync() const {
  if (::fsync(file_.get()) != 0) fail(Status::io, "cannot flush {} to disk: {}", path_, reason_of(errno));
}

}  // namespace qdelta
