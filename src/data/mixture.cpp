#include "data/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/random.h"
#include "data/permutation.h"

namespace qdelta {
namespace {

constexpr std::uint64_t kBlock = 1000;  // rows
constexpr std::uint64_t kDeal = 3;      // what the seed is mixed with, for which rows a dataset has
constexpr std::uint64_t kOwn = 4;       // and for the order of its own

}  // namespace

MixtureSource::MixtureSource(std::vector<MixturePart> parts, const TokenSourceOptions& options)
    : parts_(std::move(parts)), options_(options) {
  require(!parts_.empty(), "a mixture of no datasets");
  double sum = 0;
  for (const MixturePart& part : parts_) {
    require(std::isfinite(part.weight) && part.weight > 0, "the weight of {} is {}; it must be more than 0", part.name,
            part.weight);
    require(part.dataset->fingerprint() == parts_.front().dataset->fingerprint(),
            "{} and {} were made with different tokenizers", parts_.front().name, part.name);
    sum += part.weight;
  }
  double until = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    until += parts_[i].weight;
    ends_.push_back(static_cast<std::uint64_t>(std::llround(until / sum * static_cast<double>(kBlock))));
    require(share(i) > 0, "the weight of {} is {}, less than a thousandth of all; leave it out or give it more",
            parts_[i].name, parts_[i].weight);
    TokenSourceOptions own = options;
    own.seed = mixed_seed(options.seed, kOwn, i);
    sources_.push_back(std::make_unique<TokenSource>(parts_[i].dataset, own));
  }
}

MixtureSource::Row MixtureSource::row(std::uint64_t index) const {
  const std::uint64_t block = index / kBlock;
  const std::uint64_t place = Permutation(kBlock, mixed_seed(options_.seed, kDeal, block))(index % kBlock);
  const auto part = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin());
  return {part, block * share(part) + place - (ends_[part] - share(part))};
}

TokenBatch MixtureSource::read(std::int64_t begin, std::int64_t end) const {
  check_rows(*this, begin, end);
  TokenBatch batch;
  batch.offsets.push_back(0);
  for (std::int64_t i = begin; i < end; ++i) {
    const Row which = row(position_ + static_cast<std::uint64_t>(i));
    sources_[which.part]->append(which.index, batch);
  }
  return batch;
}

void MixtureSource::limit_context(std::int64_t tokens) {
  for (const auto& source : sources_) source->limit_context(tokens);
}

std::int32_t MixtureSource::vocab_size() const { return sources_.front()->vocab_size(); }

std::string MixtureSource::describe() const {
  std::string text;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    // Without its name: a dataset is known by what is in it, wherever it lies.
    text += fmt::format("{}{:.1f} % of {}", i == 0 ? "" : "; ", static_cast<double>(share(i)) / 10,
                        sources_[i]->describe());
  }
  return text;
}

std::vector<Epochs> MixtureSource::epochs() const {
  std::vector<Epochs> all;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const double rows = static_cast<double>(position_) * static_cast<double>(share(i)) / static_cast<double>(kBlock);
    all.push_back({parts_[i].name, rows / static_cast<double>(sources_[i]->rows_in_epoch())});
  }
  return all;
}

}  // namespace qdelta
