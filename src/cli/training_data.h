// The data of a training run: opened as its flags say, and known again by its contents.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batches.h"

namespace qdelta {

struct TrainingFlags;
class TokenDataset;

// A source of batches, what to validate on, and the tokenizer the ids come from ("" for synthetic tokens).
struct TrainingData {
  std::unique_ptr<BatchSource> source;
  std::vector<TokenBatch> validation;
  std::string tokenizer;
  std::optional<std::int64_t> bos, eos, pad;  // of the tokenizer
  // What it was made of, by name (text, train, validation, tokenizer): "5000 tokens in 3 documents, 0123456789abcdef".
  std::map<std::string, std::string> fingerprints;
};

// Where a text becomes shards.
struct ShardFolder {
  std::string path;
  bool keep = false;       // those that are there already are taken
  bool make = true;        // false: another rank makes and checks them
  int groups = 1;          // of ranks, which share a batch
  bool check_text = true;  // the text is read, for its fingerprint, where its shards are there already
};

// Shards that were not made just now are read through, to see that they are whole.
[[nodiscard]] TrainingData open_data(const TrainingFlags& flags, const ShardFolder& folder);

// What a run knows its data by: of shards, and of a text (of the file as it is, compressed or not).
[[nodiscard]] std::string fingerprint_of(const TokenDataset& dataset);
[[nodiscard]] std::string fingerprint_of_text(const std::string& path);

// PATH or PATH:WEIGHT, as in --data. A path that exists is one, whatever it ends with.
struct WeightedPath {
  std::string path;
  std::optional<double> weight;
};
[[nodiscard]] WeightedPath weighted_path(const std::string& text);

}  // namespace qdelta
