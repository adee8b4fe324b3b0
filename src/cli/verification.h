// Looks for damage in what qdelta writes: models, states, token shards, runs.
#pragma once

#include <functional>
#include <string>

namespace qdelta {

struct Finding {
  // note: nothing is wrong with the file, but there is something to say (a text has changed since, data is elsewhere).
  enum class Result { ok, no_checksum, note, damaged };

  Result result = Result::ok;
  std::string kind;  // model, checkpoint, state, shard ...
  std::string path;
  std::string detail;  // for people
};

[[nodiscard]] const char* name_of(Finding::Result result);

// Reads everything at a path, and all below it where it is a folder of several things, and passes on what it finds, one
// after the other. Throws Error(io) where there is no such path and Error(invalid_argument) where there is nothing that
// it knows.
void verify_path(const std::string& path, const std::function<void(const Finding&)>& found);

}  // namespace qdelta
