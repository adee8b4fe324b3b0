// Batches for training and validation: deterministic, and with a position that is one number, so that a run that was
// interrupted goes on exactly where it was.
//
// Documents are concatenated and cut into rows of seq_len tokens; the target of a token is the one after it, also
// across the end of a row. An epoch has every row once, in an order of its own. What is left over at the end, less than
// a row, is left out: where an epoch's rows start is shifted by a random part of it, so that it is not always the same
// tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/shards.h"

namespace qdelta {

// What ModelInput and loss_and_gradients take (model/language_model.h).
struct TokenBatch {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;  // the token after each, or -1 where there is nothing to predict
  std::vector<std::int64_t> offsets;  // sequence n is [offsets[n], offsets[n + 1])
  std::int64_t loss_tokens = 0;       // targets that are not -1
};

// How often a dataset was gone through, and its name where there are several.
struct Epochs {
  std::string dataset;
  double done = 0;
};

class BatchSource {
 public:
  BatchSource() = default;
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  // The next batch, and past it. Never ends: epoch follows epoch.
  TokenBatch next();
  // The same in pieces, for ranks that share a batch: how many rows (examples) the next one has, some of them, and past
  // all of them.
  [[nodiscard]] virtual std::int64_t next_rows() const = 0;
  [[nodiscard]] virtual TokenBatch read(std::int64_t begin, std::int64_t end) const = 0;
  virtual void advance() = 0;
  // After seek(p), next() gives what it gave when position() was p.
  [[nodiscard]] virtual std::uint64_t position() const = 0;
  virtual void seek(std::uint64_t position) = 0;
  [[nodiscard]] virtual std::int32_t vocab_size() const = 0;
  // From now on sequences have at most so many tokens; 0: as many as the source was told first. Changes no position.
  virtual void limit_context(std::int64_t tokens);
  // For people and logs, one line.
  [[nodiscard]] virtual std::string describe() const = 0;
  [[nodiscard]] virtual std::vector<Epochs> epochs() const = 0;
};

// Throws unless the next batch has rows [begin, end).
void check_rows(const BatchSource& source, std::int64_t begin, std::int64_t end);

// How rows are cut into sequences, at whose start the model's state is zero.
struct RowOptions {
  std::int64_t seq_len = 2048;
  bool reset_at_documents = false;  // a sequence starts where a document does; else one sequence a row
  std::int64_t context_len = 0;     // and at the latest after so many tokens; 0: no such limit
};

struct TokenSourceOptions {
  RowOptions row;
  std::int64_t rows = 8;  // in a batch
  std::uint64_t seed = 0;
  bool shuffle = true;
};

class TokenSource final : public BatchSource {
 public:
  // Throws Error(invalid_argument) where there is not one row.
  TokenSource(std::shared_ptr<const TokenDataset> dataset, const TokenSourceOptions& options);

  [[nodiscard]] std::int64_t next_rows() const override { return options_.rows; }
  [[nodiscard]] TokenBatch read(std::int64_t begin, std::int64_t end) const override;
  void advance() override { position_ += static_cast<std::uint64_t>(options_.rows); }
  // In rows.
  [[nodiscard]] std::uint64_t position() const override { return position_; }
  void seek(std::uint64_t position) override { position_ = position; }
  void limit_context(std::int64_t tokens) override;
  [[nodiscard]] std::int32_t vocab_size() const override { return dataset_->vocab_size(); }
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::vector<Epochs> epochs() const override;

  [[nodiscard]] std::int64_t rows_in_epoch() const { return rows_; }
  // Adds the row that comes `index`-th since the beginning.
  void append(std::uint64_t index, TokenBatch& batch) const;

 private:
  // Where the row that comes `index`-th since the beginning starts.
  [[nodiscard]] std::int64_t start_of(std::uint64_t index) const;

  std::shared_ptr<const TokenDataset> dataset_;
  TokenSourceOptions options_;
  std::int64_t rows_;
  RowOptions cut_;  // options_.row with the limit of the moment
  std::uint64_t position_ = 0;
};

// The first rows of a dataset in their order, the same every time.
class ValidationRows {
 public:
  // max_rows 0: all.
  ValidationRows(std::shared_ptr<const TokenDataset> dataset, const RowOptions& row, std::int64_t rows_per_batch,
                 std::int64_t max_rows = 0);

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t batches() const;
  // The last may have fewer rows.
  [[nodiscard]] TokenBatch batch(std::int64_t index) const;

 private:
  std::shared_ptr<const TokenDataset> dataset_;
  RowOptions row_;
  std::int64_t rows_per_batch_;
  std::int64_t rows_;
};

}  // namespace qdelta
