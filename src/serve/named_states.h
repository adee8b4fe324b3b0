// States that clients have given names: files of one folder, as `generate --save-state` makes them. NAME is the file
// NAME.state, so that what the command leaves there is found here, and the other way round. Names cannot lead out of
// the folder; the number of files and their bytes are bounded.
//
// The folder itself is what counts: nothing about it is remembered. Files are replaced as a whole, never changed. All
// functions may be called from any thread that may wait for a disk; they throw ApiError.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.h"
#include "model/language_model.h"
#include "serve/job.h"

namespace qdelta::serve {

struct StateLimits {
  std::string folder;                        // empty: no states are kept
  std::size_t most = 256;                    // files
  std::size_t disk = std::size_t{4} << 30U;  // bytes of all of them
};

class NamedStates {
 public:
  struct Info {
    std::string name;
    std::int64_t tokens = 0;  // read, and the one that is pending
    std::int64_t saved = 0;   // Unix time
    std::size_t bytes = 0;    // of the file
    std::string unusable;     // why this model cannot go on from it; empty where it can
  };
  // Room for a file that is to come.
  class Room {
   public:
    Room(NamedStates& states, std::string name) : states_(states), name_(std::move(name)) {}
    ~Room();
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    [[nodiscard]] const std::string& name() const { return name_; }

   private:
    NamedStates& states_;
    std::string name_;
  };

  // Makes the folder where there is none.
  NamedStates(const StateLimits& limits, const LanguageModel& model);

  // Of one state in memory.
  [[nodiscard]] std::size_t state_bytes() const { return state_bytes_; }
  // How large an upload may be.
  [[nodiscard]] std::size_t largest_file() const;

  [[nodiscard]] std::vector<Info> list() const;
  [[nodiscard]] Info info(const std::string& name) const;
  [[nodiscard]] MappedFile file(const std::string& name) const;
  [[nodiscard]] std::shared_ptr<const StateCopy> load(const std::string& name) const;
  // A file that somebody has sent.
  [[nodiscard]] std::shared_ptr<const StateCopy> parse(std::string_view bytes) const;
  // One to be filled.
  [[nodiscard]] std::shared_ptr<StateCopy> blank() const;
  // A state of that name is replaced when the new one is whole.
  [[nodiscard]] std::unique_ptr<Room> reserve(const std::string& name);
  [[nodiscard]] Info save(const Room& room, const StateCopy& state) const;
  void remove(const std::string& name) const;

 private:
  struct File {
    std::size_t bytes = 0;
    std::int64_t saved = 0;
  };
  [[nodiscard]] std::string path_of(const std::string& name) const;
  // Throws where there is none.
  [[nodiscard]] File find(const std::string& name) const;
  [[nodiscard]] std::map<std::string, File> files() const;
  [[nodiscard]] Info info_of(const std::string& name, const File& file) const;

  const StateLimits limits_;
  const LanguageModel& model_;
  const std::uint64_t model_hash_;
  std::size_t state_bytes_, file_bytes_;  // of one state; about, and not less

  std::mutex mutex_;
  std::multimap<std::string, std::size_t> reserved_;  // bytes by name
};

}  // namespace qdelta::serve
