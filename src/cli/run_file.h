// RUN/run.toml: what a training run was started with, so that it can be resumed by its name alone.
//
//   text = "book.txt"              every setting of the run, named like its flag, given or by default
//   steps = 500
//   ...
//   [start]                        version, commit and number of ranks that it was started with
//   [data]                         fingerprints of its data
//   [extension-1]                  steps and schedule of what --extend added, where it did
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace qdelta {

inline constexpr const char* kRunFileName = "run.toml";

struct RunFile {
  using Section = std::map<std::string, std::string>;
  std::map<std::string, std::vector<std::string>> settings;
  std::map<std::string, Section> sections;

  // nullopt where the run has none: it is of version 0.1.
  [[nodiscard]] static std::optional<RunFile> read(const std::string& run);
  void write(const std::string& run) const;

  // Every setting of a command, given or by default, but for those named in `except`.
  void take_settings(const CLI::App& command, const std::vector<std::string>& except);
  // Gives a command the settings that it was not given. Throws where one that it was given is another than the run's,
  // naming it and both values; those in `free` may differ.
  void apply(CLI::App& command, const std::string& run, const std::vector<std::string>& free) const;
  // Throws where `now` has something else than the section has under the same name, or lacks a name.
  void check_section(const std::string& name, const Section& now, const std::string& what) const;
};

}  // namespace qdelta
