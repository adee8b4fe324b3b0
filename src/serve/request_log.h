// One line of JSON for each request that has ended: when, what, from where, with which status, how long it took, and
// what was noted about it. Prompts are not among it unless asked for.
#pragma once

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include "core/error.h"
#include "io/warn.h"
#include "serve/http.h"
#include "serve/json_text.h"

namespace qdelta::serve {

class RequestLog {
 public:
  // Appends to a file; "": writes nothing, "-": to standard error.
  explicit RequestLog(const std::string& path) : own_(!path.empty() && path != "-") {
    if (path == "-") file_ = stderr;
    if (own_) file_ = std::fopen(path.c_str(), "ae");
    if (own_ && file_ == nullptr) fail(Status::io, "cannot write {}: {}", path, std::strerror(errno));
    if (own_) std::setvbuf(file_, nullptr, _IONBF, 0);  // a line is written at once, or not
  }
  ~RequestLog() {
    if (own_ && file_ != nullptr) std::fclose(file_);
  }
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  void write(const HttpRecord& record) {
    if (file_ == nullptr) return;
    const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
    const std::string line = fmt::format(
        R"({{"time":"{:%FT%T}Z","remote":{},"method":{},"path":{},"status":{},"seconds":{:.6f},"bytes":{}{}{}}})", now,
        json_string(record.remote), json_string(record.method), json_string(record.path), record.status, record.seconds,
        record.sent, record.note.empty() ? "" : ",", record.note);
    const std::lock_guard lock(mutex_);
    // A full disk is no reason not to serve.
    const bool failed = std::fputs((line + "\n").c_str(), file_) < 0;
    if (failed && !failed_) warn(fmt::format("the log cannot be written: {}", std::strerror(errno)));
    failed_ = failed;
  }

 private:
  bool own_;
  bool failed_ = false;  // the last line is lost; that is said once
  std::FILE* file_ = nullptr;
  std::mutex mutex_;
};

}  // namespace qdelta::serve
