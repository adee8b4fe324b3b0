#include "data/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "core/error.h"
#include "core/memory.h"
#include "core/random.h"
#include "data/permutation.h"

namespace qdelta {
namespace {

constexpr std::uint64_t kOrder = 1;  // what a seed is mixed with, so that its uses do not share their numbers
constexpr std::uint64_t kShift = 2;

void check(const RowOptions& row) {
  require(row.seq_len > 0, "a row must have at least one token, not {}", row.seq_len);
  require(row.context_len >= 0, "a context of {} tokens is impossible; 0 means no limit", row.context_len);
}

// Rows that fit: each takes seq_len tokens, and the last one a target more.
std::int64_t count_rows(const TokenDataset& dataset, const RowOptions& row) {
  check(row);
  const std::int64_t rows = (dataset.tokens() - 1) / row.seq_len;
  require(rows > 0, "the data has {} tokens; a row of {} and the token after it take {}", dataset.tokens(), row.seq_len,
          row.seq_len + 1);
  return rows;
}

// Sequences that start in the row at `start`, other than the row itself.
void cut_row(const TokenDataset& dataset, const RowOptions& row, std::int64_t start, std::int64_t base,
             std::vector<std::int64_t>& offsets) {
  const std::int64_t end = start + row.seq_len;
  std::int64_t last = start;
  const auto limit_until = [&](std::int64_t position) {
    while (row.context_len > 0 && position - last > row.context_len) {
      last += row.context_len;
      offsets.push_back(base + last - start);
    }
  };
  if (row.reset_at_documents) {
    dataset.for_each_document_start(start + 1, end, [&](std::int64_t position) {
      limit_until(position);
      last = position;
      offsets.push_back(base + position - start);
    });
  }
  limit_until(end);
}

void append_row(const TokenDataset& dataset, const RowOptions& row, std::int64_t start, TokenBatch& batch) {
  const std::size_t before = batch.ids.size();
  const auto length = static_cast<std::size_t>(row.seq_len);
  batch.ids.resize(before + length + 1);
  dataset.copy(start, std::span(batch.ids).subspan(before));
  batch.targets.insert(batch.targets.end(), batch.ids.begin() + static_cast<std::ptrdiff_t>(before) + 1,
                       batch.ids.end());
  batch.ids.pop_back();
  cut_row(dataset, row, start, static_cast<std::int64_t>(before), batch.offsets);
  batch.offsets.push_back(static_cast<std::int64_t>(before + length));
  batch.loss_tokens += row.seq_len;
}

TokenBatch empty_batch(std::int64_t rows, const RowOptions& row) {
  TokenBatch batch;
  batch.ids.reserve(static_cast<std::size_t>(rows * row.seq_len + 1));
  batch.targets.reserve(static_cast<std::size_t>(rows * row.seq_len));
  batch.offsets.push_back(0);
  return batch;
}

}  // namespace

void check_rows(const BatchSource& source, std::int64_t begin, std::int64_t end) {
  require(begin >= 0 && begin <= end && end <= source.next_rows(), "rows {} to {} of a batch of {}", begin, end,
          source.next_rows());
}

void BatchSource::limit_context(std::int64_t tokens) {
  require(tokens == 0, "sequences of this data have the length that they have, not {} tokens", tokens);
}

TokenBatch BatchSource::next() {
  TokenBatch batch = read(0, next_rows());
  advance();
  return batch;
}

TokenSource::TokenSource(std::shared_ptr<const TokenDataset> dataset, const TokenSourceOptions& options)
    : dataset_(std::move(dataset)), options_(options), rows_(count_rows(*dataset_, options.row)), cut_(options.row) {
  require(options_.rows > 0, "a batch must have at least one row, not {}", options_.rows);
}

std::int64_t TokenSource::start_of(std::uint64_t index) const {
  const auto rows = static_cast<std::uint64_t>(rows_);
  const auto length = static_cast<std::uint64_t>(options_.row.seq_len);
  const std::uint64_t epoch = index / rows;
  if (!options_.shuffle) return static_cast<std::int64_t>(index % rows * length);
  const auto left_over = static_cast<std::uint64_t>(dataset_->tokens()) - 1 - rows * length;
  const std::uint64_t shift = Random(mixed_seed(options_.seed, kShift, epoch)).bits() % (left_over + 1);
  const Permutation order(rows, mixed_seed(options_.seed, kOrder, epoch));
  return static_cast<std::int64_t>(shift + order(index % rows) * length);
}

TokenBatch TokenSource::read(std::int64_t begin, std::int64_t end) const {
  check_rows(*this, begin, end);
  TokenBatch batch = empty_batch(end - begin, options_.row);
  for (std::int64_t row = begin; row < end; ++row) {
    append(position_ + static_cast<std::uint64_t>(row), batch);
  }
  return batch;
}

void TokenSource::append(std::uint64_t index, TokenBatch& batch) const {
  append_row(*dataset_, cut_, start_of(index), batch);
}

void TokenSource::limit_context(std::int64_t tokens) {
  const std::int64_t told = options_.row.context_len;
  cut_.context_len = tokens > 0 && (told == 0 || tokens < told) ? tokens : told;
  check(cut_);
}

std::vector<Epochs> TokenSource::epochs() const {
  return {{"", static_cast<double>(position_) / static_cast<double>(rows_)}};
}

std::string TokenSource::describe() const {
  std::string cut = options_.row.reset_at_documents ? ", a sequence for each document" : "";
  if (options_.row.context_len > 0) cut += fmt::format(", sequences of at most {} tokens", options_.row.context_len);
  return fmt::format("{} tokens in {} documents, {} rows of {}{}, {}", dataset_->tokens(), dataset_->documents(), rows_,
                     options_.row.seq_len, cut,
                     options_.shuffle ? fmt::format("shuffled with seed {}", options_.seed) : "in order");
}

ValidationRows::ValidationRows(std::shared_ptr<const TokenDataset> dataset, const RowOptions& row,
                               std::int64_t rows_per_batch, std::int64_t max_rows)
    : dataset_(std::move(dataset)), row_(row), rows_per_batch_(rows_per_batch), rows_(count_rows(*dataset_, row)) {
  require(rows_per_batch > 0, "a batch must have at least one row, not {}", rows_per_batch);
  require(max_rows >= 0, "{} rows are impossible; 0 means all", max_rows);
  if (max_rows > 0) rows_ = std::min(rows_, max_rows);
}

std::int64_t ValidationRows::batches() const { return ceil_div(rows_, rows_per_batch_); }

TokenBatch ValidationRows::batch(std::int64_t index) const {
  require(index >= 0 && index < batches(), "there is no batch {} of {}", index, batches());
  const std::int64_t first = index * rows_per_batch_;
  const std::int64_t end = std::min(first + rows_per_batch_, rows_);
  TokenBatch batch = empty_batch(end - first, row_);
  for (std::int64_t row = first; row < end; ++row) append_row(*dataset_, row_, row * row_.seq_len, batch);
  return batch;
}

}  // namespace qdelta
