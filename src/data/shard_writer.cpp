#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "data/checked_json.h"
#include "data/shard_format.h"
#include "data/shards.h"
#include "io/atomic_file.h"
#include "io/folders.h"
#include "io/mapped_file.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "qdelta token shards";
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40U;  // in a shard

std::string shard_name(std::size_t number) { return fmt::format("tokens-{:05}.qdt", number); }
bool is_shard_name(const std::string& name) { return name.starts_with("tokens-") && name.ends_with(".qdt"); }

}  // namespace

std::vector<ShardEntry> read_shard_index(const std::string& folder) {
  const std::string path = (fs::path(folder) / kShardIndexName).string();
  std::error_code error;
  if (!fs::exists(path, error) && !error) {
    fail(Status::invalid_argument,
         "{} has no {}: not a folder of token shards, or `qdelta tokenize` did not finish writing it", folder,
         kShardIndexName);
  }
  const MappedFile file(path);
  return parse_shard_index({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

std::vector<ShardEntry> parse_shard_index(std::string_view text, const std::string& label) {
  const nlohmann::json json = parse_json(text, label);
  const JsonAt top(json, label);
  if (top.at("format").text() != kFormat) top.at("format").corrupt("must be \"{}\"", kFormat);
  const std::int64_t version = top.at("version").integer(0, INT32_MAX);
  if (version < 1 || version > kShardVersion) {
    top.at("version").unsupported("this program reads versions 1 to {}", kShardVersion);
  }
  std::vector<ShardEntry> entries;
  for (const JsonAt& entry : top.at("shards").elements()) {
    const std::string name = entry.at("file").text();
    if (name.empty() || name == "." || name == ".." || fs::path(name).filename() != fs::path(name)) {
      entry.at("file").corrupt("must be the name of a file in the same folder");
    }
    entries.push_back(
        {name, entry.at("tokens").integer(0, kMostTokens), entry.at("documents").integer(0, kMostTokens)});
  }
  if (entries.empty()) top.at("shards").corrupt("there is none");
  return entries;
}

ShardWriter::ShardWriter(Options options)
    : options_(std::move(options)), width_(shard_token_width(options_.vocab_size)) {
  require(options_.vocab_size > 0, "a vocabulary of {} ids is impossible", options_.vocab_size);
  require(options_.shard_tokens > 0 && options_.shard_tokens <= kMostTokens,
          "a shard can be told to have from 1 to {} tokens, not {}", kMostTokens, options_.shard_tokens);
  const fs::path folder = options_.folder;
  make_folders(options_.folder);
  std::error_code error;
  const fs::path index = folder / kShardIndexName;
  if (!fs::exists(index, error)) return;
  require(options_.replace, "{} holds token shards already; choose another folder, or --force to replace them",
          options_.folder);
  // First of all, so that it never lists shards of two runs.
  if (!fs::remove(index, error) || error) fail(Status::io, "cannot remove {}: {}", index.string(), error.message());
  sync_folder(options_.folder);
}

void ShardWriter::add(std::span<const std::int32_t> document) {
  require(!document.empty(), "a document without tokens cannot be kept");
  for (const std::int32_t id : document) {
    require(id >= 0 && id < options_.vocab_size, "the id {} is not in a vocabulary of {}", id, options_.vocab_size);
  }
  const std::size_t before = tokens_.size();
  tokens_.resize(before + document.size() * width_);
  std::byte* to = tokens_.data() + before;
  for (const std::int32_t id : document) {
    std::memcpy(to, &id, width_);  // the low bytes come first
    to += width_;
  }
  offsets_.push_back(offsets_.back() + document.size());
  if (offsets_.back() >= static_cast<std::uint64_t>(options_.shard_tokens)) write_shard();
}

void ShardWriter::write_shard() {
  ShardHeader header;
  header.width = static_cast<std::uint32_t>(width_);
  header.tokens = offsets_.back();
  header.documents = offsets_.size() - 1;
  header.fingerprint = options_.fingerprint;
  header.vocab_size = static_cast<std::uint32_t>(options_.vocab_size);
  tokens_.resize(shard_data_bytes(header.tokens, header.width));
  header.checksum = shard_checksum(header, offsets_);
  header.token_checksum = shard_token_checksum(header.version, tokens_);

  const std::string name = shard_name(written_.size());
  AtomicFile file((fs::path(options_.folder) / name).string());
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(tokens_);
  file.write(std::as_bytes(std::span(offsets_)));
  file.commit();
  written_.push_back({name, static_cast<std::int64_t>(header.tokens), static_cast<std::int64_t>(header.documents)});
  tokens_.clear();
  offsets_.assign(1, 0);
}

void ShardWriter::write_index() const {
  nlohmann::json shards = nlohmann::json::array();
  for (const Written& shard : written_) {
    shards.push_back({{"file", shard.name}, {"tokens", shard.tokens}, {"documents", shard.documents}});
  }
  const nlohmann::json index = {{"format", kFormat},
                                {"version", kShardVersion},
                                {"tokenizer", options_.tokenizer_name},
                                {"tokenizer_fingerprint", fmt::format("{:016x}", options_.fingerprint)},
                                {"vocab_size", options_.vocab_size},
                                {"shards", shards}};
  // A path need not be UTF-8; what is not is shown as U+FFFD.
  const std::string text = index.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  write_whole((fs::path(options_.folder) / kShardIndexName).string(), text);
}

ShardWriter::Totals ShardWriter::finish() {
  if (offsets_.size() > 1) write_shard();
  require(!written_.empty(), "there are no documents to write to {}", options_.folder);
  write_index();
  Totals totals;
  totals.shards = static_cast<std::int64_t>(written_.size());
  std::set<std::string> ours;
  for (const Written& shard : written_) {
    totals.tokens += shard.tokens;
    totals.documents += shard.documents;
    ours.insert(shard.name);
  }
  // What an earlier run left behind and this one did not need.
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder, error)) {
    const std::string name = entry.path().filename().string();
    if (is_shard_name(name) && !ours.contains(name)) fs::remove(entry.path(), error);
  }
  return totals;
}

}  // namespace qdelta
