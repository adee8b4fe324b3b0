#include "cli/training_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "cli/training_flags.h"
#include "core/hash.h"
#include "data/encode_file.h"
#include "data/mixture.h"
#include "data/mqar.h"
#include "data/shard_format.h"
#include "data/tokenizer.h"
#include "io/mapped_file.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

// The ids [begin, end) of a file as shards. A document that lies on a border is cut there.
void write_part(const fs::path& folder, const Tokenizer& tokenizer, const EncodedFile& file, std::size_t begin,
                std::size_t end) {
  ShardWriter writer({.folder = folder.string(),
                      .tokenizer_name = tokenizer.name(),
                      .vocab_size = tokenizer.vocab_size(),
                      .fingerprint = tokenizer.fingerprint(),
                      .replace = true});
  for (const std::size_t document_end : file.ends) {
    const std::size_t here = std::min(document_end, end);
    if (here <= begin) continue;
    writer.add(std::span(file.ids).subspan(begin, here - begin));
    begin = here;
  }
  writer.finish();
}

// A text file as two sets of shards inside the run: its last part is kept for validation.
void shard_text(const TrainingFlags& flags, const Tokenizer& tokenizer, const fs::path& train,
                const fs::path& held_out) {
  const EncodedFile file =
      encode_file(tokenizer, flags.text, flags.text_key, flags.text_bytes ? TextBytes::any : TextBytes::utf8);
  const std::size_t size = file.ids.size();
  const auto row = static_cast<std::size_t>(flags.seq_len + 1);
  const std::size_t kept = std::max(size / 20, row);
  require(size >= kept + row, "{} has only {} tokens: too few for rows of {}", flags.text, size, flags.seq_len);
  write_part(train, tokenizer, file, 0, size - kept);
  write_part(held_out, tokenizer, file, size - kept, size);
}

// Shards that were made some time ago may have been damaged since. Better to hear now than to train on noise.
void check_shards(const TokenDataset& dataset) {
  constexpr double kSilent = 2e9;  // bytes: 0.6 s of checking, and some seconds of a slow disk
  const double bytes = static_cast<double>(dataset.tokens()) * shard_token_width(dataset.vocab_size());
  if (bytes > kSilent) {
    fmt::print("Checking {:.1f} GB of token shards for damage ...\n", bytes / 1e9);
    std::fflush(stdout);
  }
  dataset.verify();
}

TrainingData open_mqar(const TrainingFlags& flags, int ranks) {
  MqarOptions options;
  options.vocab_size = static_cast<std::int32_t>(flags.model.vocab_size.value_or(8192));
  options.seed = flags.seed;
  options.batch_size = flags.batch_rows(ranks);
  options.tasks = mqar_tasks_of(flags.mqar, flags.rewrites, mqar_training_tasks);
  MqarOptions held_out = options;
  held_out.batch_size = flags.rows;
  held_out.seed = flags.seed + 1'000'003;
  if (flags.mqar == "paper") held_out.tasks = mqar_test_tasks();
  for (MqarTask& task : held_out.tasks) {
    if (flags.validation_rows > 0) task.examples = std::min<std::int64_t>(task.examples, flags.validation_rows);
  }
  const MqarSource examples(held_out);
  TrainingData data;
  for (std::size_t task = 0; task < held_out.tasks.size(); ++task) {
    for (std::int64_t i = 0; i < examples.batches_of(task); ++i) data.validation.push_back(examples.batch_of(task, i));
  }
  data.source = std::make_unique<MqarSource>(options);
  return data;
}

// Where qdelta tokenize left the tokenizer of these shards; "" where it did not.
std::string tokenizer_beside(const std::string& shards) {
  return fs::exists(fs::path(shards) / "qdelta_tokenizer.json") ? shards : "";
}

void check_flags(const TrainingFlags& flags) {
  const int given = (flags.text.empty() ? 0 : 1) + (flags.data.empty() ? 0 : 1) + (flags.mqar.empty() ? 0 : 1);
  require(given == 1, "give exactly one of --text, --data and --mqar; see qdelta train --help");
  require(flags.validation.empty() || !flags.data.empty(),
          "--validation goes with --data: {} keeps a part of its own to validate on",
          flags.text.empty() ? "--mqar" : "--text");
  require(flags.tokenizer.empty() || flags.mqar.empty(), "--tokenizer has no meaning with --mqar");
  require(flags.curriculum.empty() || flags.mqar.empty(), "--curriculum has no meaning with --mqar");
  require(flags.rewrites == 0 || !flags.mqar.empty(), "--rewrites {} goes with --mqar", flags.rewrites);
  constexpr std::int64_t kLongestRow = std::int64_t{1} << 32U;  // so that it can be counted with
  require(flags.seq_len >= 1 && flags.seq_len <= kLongestRow, "seq-len is {}, expected 1 to {} tokens", flags.seq_len,
          kLongestRow);
  require(flags.validation_rows >= 0, "validation-rows is {}, expected 0 (all) or more", flags.validation_rows);
}

// The source of what --data names: one dataset, or a mixture where there are weights.
std::unique_ptr<BatchSource> token_source(const std::vector<std::string>& data, const TokenSourceOptions& options,
                                          const Tokenizer* tokenizer, bool check, TrainingData& out) {
  std::vector<WeightedPath> paths;
  for (const std::string& text : data) paths.push_back(weighted_path(text));
  const auto weights = std::ranges::count_if(paths, [](const WeightedPath& path) { return path.weight.has_value(); });
  require(weights == 0 || weights == std::ssize(paths),
          "--data: give every dataset a weight (PATH:WEIGHT), or none of them");
  const auto open = [&](const std::vector<std::string>& which, const std::string& name) {
    auto dataset = std::make_shared<const TokenDataset>(TokenDataset::open(which, tokenizer));
    require(tokenizer == nullptr || tokenizer->fingerprint() == dataset->fingerprint(),
            "the shards were made with another tokenizer than {}", out.tokenizer);
    if (check) check_shards(*dataset);
    out.fingerprints[name] = fingerprint_of(*dataset);
    out.fingerprints["tokenizer"] = fmt::format("{:016x}", dataset->fingerprint());
    return dataset;
  };
  if (weights == 0) {
    std::vector<std::string> plain;
    for (const WeightedPath& path : paths) plain.push_back(path.path);
    return std::make_unique<TokenSource>(open(plain, "train"), options);
  }
  std::vector<MixturePart> parts;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const WeightedPath& path = paths[i];
    parts.push_back(
        {fs::path(path.path).filename().string(), open({path.path}, fmt::format("train-{}", i + 1)), *path.weight});
  }
  return std::make_unique<MixtureSource>(std::move(parts), options);
}

}  // namespace

std::string fingerprint_of(const TokenDataset& dataset) {
  return fmt::format("{} tokens in {} documents, {:016x}", dataset.tokens(), dataset.documents(), dataset.contents());
}

std::string fingerprint_of_text(const std::string& path) {
  const MappedFile file(path);
  constexpr std::size_t kBlock = std::size_t{1} << 20U;  // the hash of a file depends on it
  std::span<const std::byte> rest = file.bytes();
  std::uint64_t hash = 0;
  while (!rest.empty()) {
    const std::size_t length = std::min(rest.size(), kBlock);
    hash = hash_bytes(rest.first(length), hash);
    rest = rest.subspan(length);
  }
  return fmt::format("{} bytes, {:016x}", file.bytes().size(), hash);
}

WeightedPath weighted_path(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || fs::exists(text)) return {text, std::nullopt};
  double weight = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + colon + 1, end, weight);
  if (read.ec != std::errc() || read.ptr != end) return {text, std::nullopt};
  return {text.substr(0, colon), weight};
}

TrainingData open_data(const TrainingFlags& flags, const ShardFolder& folder) {
  check_flags(flags);
  if (!flags.mqar.empty()) return open_mqar(flags, folder.groups);

  TrainingData data;
  data.tokenizer = flags.tokenizer;
  if (data.tokenizer.empty()) {
    data.tokenizer = flags.text.empty() ? tokenizer_beside(weighted_path(flags.data.front()).path) : "bytes";
  }
  std::vector<std::string> paths = flags.data;
  std::vector<std::string> held_out = flags.validation;
  const auto tokenizer = data.tokenizer.empty() ? nullptr : load_tokenizer(data.tokenizer);
  if (tokenizer != nullptr) {
    data.bos = tokenizer->bos();
    data.eos = tokenizer->eos();
    data.pad = tokenizer->pad();
  }
  bool check = folder.make;
  if (!flags.text.empty()) {
    const fs::path train = fs::path(folder.path) / "train";
    const fs::path validation = fs::path(folder.path) / "validation";
    // A run that is resumed has them already, and must see the same ones.
    const bool there = fs::exists(train / kShardIndexName) && fs::exists(validation / kShardIndexName);
    const bool makes = folder.make && !(folder.keep && there);
    if (makes || (folder.make && folder.check_text)) data.fingerprints["text"] = fingerprint_of_text(flags.text);
    if (makes) shard_text(flags, *tokenizer, train, validation);
    check = check && !makes;
    paths = {train.string()};
    held_out = {validation.string()};
  }
  const RowOptions row{flags.seq_len, flags.reset_at_documents, flags.context_len};
  data.source =
      token_source(paths, {.row = row, .rows = flags.batch_rows(folder.groups), .seed = flags.seed, .shuffle = true},
                   tokenizer.get(), check, data);
  if (!held_out.empty()) {
    const auto rows_dataset = std::make_shared<const TokenDataset>(TokenDataset::open(held_out, tokenizer.get()));
    require(fmt::format("{:016x}", rows_dataset->fingerprint()) == data.fingerprints.at("tokenizer"),
            "training and validation data have different tokenizers");
    if (check) check_shards(*rows_dataset);
    data.fingerprints["validation"] = fingerprint_of(*rows_dataset);
    const ValidationRows rows(rows_dataset, row, flags.rows, flags.validation_rows);
    for (std::int64_t i = 0; i < rows.batches(); ++i) data.validation.push_back(rows.batch(i));
  }
  return data;
}

}  // namespace qdelta
