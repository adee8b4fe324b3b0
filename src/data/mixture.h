// Rows of several datasets in one stream, each dataset with its share of them.
//
// Of every 1,000 rows each dataset has the same number, its weight in thousandths of their sum; which ones is drawn
// from the seed. Each dataset's own rows come in an order like that it would have alone, epoch after epoch. Any
// position can be computed by itself, so a run resumes anywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/batches.h"

namespace qdelta {

struct MixturePart {
  std::string name;  // for reports
  std::shared_ptr<const TokenDataset> dataset;
  double weight = 1;  // relative to the others
};

class MixtureSource final : public BatchSource {
 public:
  // The datasets must come from one tokenizer, and each have a row of the thousand.
  MixtureSource(std::vector<MixturePart> parts, const TokenSourceOptions& options);

  [[nodiscard]] std::int64_t next_rows() const override { return options_.rows; }
  [[nodiscard]] TokenBatch read(std::int64_t begin, std::int64_t end) const override;
  void advance() override { position_ += static_cast<std::uint64_t>(options_.rows); }
  // In rows.
  [[nodiscard]] std::uint64_t position() const override { return position_; }
  void seek(std::uint64_t position) override { position_ = position; }
  void limit_context(std::int64_t tokens) override;
  [[nodiscard]] std::int32_t vocab_size() const override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::vector<Epochs> epochs() const override;

  // The dataset of the row that comes `index`-th, and which of that dataset's rows it is.
  struct Row {
    std::size_t part;
    std::uint64_t index;
  };
  [[nodiscard]] Row row(std::uint64_t index) const;
  // Of 1,000 rows.
  [[nodiscard]] std::uint64_t share(std::size_t part) const { return ends_[part] - (part == 0 ? 0 : ends_[part - 1]); }

 private:
  std::vector<MixturePart> parts_;
  TokenSourceOptions options_;
  std::vector<std::unique_ptr<TokenSource>> sources_;
  std::vector<std::uint64_t> ends_;  // of each dataset's places among 1,000
  std::uint64_t position_ = 0;
};

}  // namespace qdelta
