// A batch cut into parts that run at the same time and pass each other states and rows, as the ranks of
// --sequence-parallel do (here: threads), against the whole batch on one.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

#include "data/batch_part.h"
#include "model/model_case.h"
#include "model/sequence_part.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

class Mail {
 public:
  void put(int from, int to, std::span<const float> data) {
    const std::lock_guard lock(mutex_);
    messages_[{from, to}].emplace(data.begin(), data.end());
    floats_ += data.size();
    changed_.notify_all();
  }
  std::vector<float> get(int from, int to) {
    std::unique_lock lock(mutex_);
    auto& queue = messages_[{from, to}];
    changed_.wait(lock, [&] { return !queue.empty(); });
    std::vector<float> data = std::move(queue.front());
    queue.pop();
    return data;
  }
  [[nodiscard]] bool empty() const {
    return std::ranges::all_of(messages_, [](const auto& entry) { return entry.second.empty(); });
  }
  [[nodiscard]] std::size_t floats() const { return floats_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::queue<std::vector<float>>> messages_;
  std::size_t floats_ = 0;
};

class ThreadPart final : public SequencePart {
 public:
  ThreadPart(Mail& mail, int index, bool enters, bool leaves) : mail_(mail), index_(index) {
    enters_ = enters;
    leaves_ = leaves;
  }

 protected:
  void send(Way way, std::span<const float> data) override {
    mail_.put(index_, index_ + (way == Way::on ? 1 : -1), data);
  }
  void receive(Way way, std::span<float> data) override {
    const std::vector<float> got = mail_.get(index_ + (way == Way::on ? -1 : 1), index_);
    ASSERT_EQ(got.size(), data.size());
    std::ranges::copy(got, data.begin());
  }

 private:
  Mail& mail_;
  int index_;
};

struct Computed {
  std::vector<float> losses;      // of every token, without training
  std::vector<double> gradients;  // of the mean loss
  double loss = 0;
  std::size_t floats_passed = 0;
};

Computed run_in_parts(const LanguageModel& model, const TokenBatch& whole, int parts, Recompute recompute) {
  Computed out;
  Mail mail;
  std::vector<Computed> of_parts(static_cast<std::size_t>(parts));
  std::vector<std::thread> threads;
  for (int index = 0; index < parts; ++index) {
    threads.emplace_back([&, index] {
      const BatchPart cut = part_of(whole, index, parts);
      ThreadPart neighbours(mail, index, cut.enters, cut.leaves);
      ModelRunner runner(model, {.threads = 1}, recompute);
      const ModelInput input{cut.batch.ids, cut.batch.offsets, parts > 1 ? &neighbours : nullptr};
      Computed& mine = of_parts[static_cast<std::size_t>(index)];
      mine.losses.resize(cut.batch.ids.size());
      runner.losses(input, cut.batch.targets, mine.losses);
      std::vector<float> gradients(static_cast<std::size_t>(model.layout().size));
      mine.loss = runner.loss_and_gradients(input, cut.batch.targets, gradients, whole.loss_tokens);
      mine.gradients.assign(gradients.begin(), gradients.end());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(mail.empty());
  out.gradients.resize(static_cast<std::size_t>(model.layout().size));
  for (const Computed& part : of_parts) {
    out.losses.insert(out.losses.end(), part.losses.begin(), part.losses.end());
    out.loss += part.loss;
    for (std::size_t i = 0; i < out.gradients.size(); ++i) out.gradients[i] += part.gradients[i];
  }
  out.floats_passed = mail.floats();
  return out;
}

TokenBatch batch_of(std::int64_t vocabulary, const std::vector<std::int64_t>& lengths) {
  TokenCase tokens(5, vocabulary, lengths);
  TokenBatch batch;
  batch.loss_tokens = std::ranges::count_if(tokens.targets, [](auto target) { return target >= 0; });
  batch.ids = std::move(tokens.ids);
  batch.targets = std::move(tokens.targets);
  batch.offsets = std::move(tokens.offsets);
  return batch;
}

std::vector<double> doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

void expect_alike(const Computed& parts, const Computed& whole) {
  EXPECT_LE(relative_error(doubles(parts.losses), doubles(whole.losses)), 1e-5);
  EXPECT_NEAR(parts.loss, whole.loss, 1e-5 * whole.loss);
  EXPECT_LE(relative_error(parts.gradients, whole.gradients), 3e-5);
}

class SequenceParts : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Mixers, SequenceParts, ::testing::ValuesIn(all_mixers()), mixer_test_name);

// One sequence, also of several chunks and of fewer tokens a part than the convolution is wide; packed ones with their
// boundaries anywhere, and exactly at the cut.
TEST_P(SequenceParts, AreTheWholeBatch) {
  const std::vector<std::pair<std::vector<std::int64_t>, std::vector<int>>> cases{
      {{150}, {2, 4}}, {{9}, {4}}, {{5, 20, 1, 31}, {2, 3}}, {{16, 16}, {2, 4}}, {{2, 1, 3}, {3}}};
  for (const bool doubled : {false, true}) {
    ModelConfig config = small_config(GetParam());
    if (doubled && GetParam().find("mamba") != std::string::npos) continue;
    config.allow_neg_eigval = doubled;
    LanguageModel model(config);
    initialise(model.layout(), 7, model.parameters());
    for (const auto& [lengths, cuts] : cases) {
      const TokenBatch batch = batch_of(config.vocab_size, lengths);
      const Computed whole = run_in_parts(model, batch, 1, Recompute::none);
      for (const int parts : cuts) {
        SCOPED_TRACE(fmt::format("{} tokens in {} sequences, {} parts", batch.ids.size(), lengths.size(), parts));
        expect_alike(run_in_parts(model, batch, parts, Recompute::none), whole);
      }
    }
  }
}

TEST_P(SequenceParts, WithRecomputation) {
  LanguageModel model(small_config(GetParam()));
  initialise(model.layout(), 8, model.parameters());
  const TokenBatch batch = batch_of(model.config().vocab_size, {7, 60});
  const Computed whole = run_in_parts(model, batch, 1, Recompute::none);
  for (const Recompute recompute : {Recompute::some, Recompute::all}) {
    expect_alike(run_in_parts(model, batch, 3, recompute), whole);
  }
}

TEST(SequencePartsOf, AModelWithoutConvolution) {
  ModelConfig config = small_config(Rule::q_delta);
  config.use_short_conv = false;
  LanguageModel model(config);
  initialise(model.layout(), 9, model.parameters());
  const TokenBatch batch = batch_of(config.vocab_size, {40});
  expect_alike(run_in_parts(model, batch, 2, Recompute::none), run_in_parts(model, batch, 1, Recompute::none));
}

// A state and the rows of a convolution for each layer and cut: as much for a long sequence as for a short one, and
// nothing where the cut falls between two.
TEST(SequencePartsOf, PassEachOtherTheSameWhateverTheLength) {
  LanguageModel model(small_config(Rule::q_delta));
  initialise(model.layout(), 10, model.parameters());
  const ModelConfig& c = model.config();
  const auto passed = [&](const std::vector<std::int64_t>& lengths) {
    return run_in_parts(model, batch_of(c.vocab_size, lengths), 2, Recompute::none).floats_passed;
  };
  const std::int64_t state = c.value_heads() * c.head_dim * c.value_dim();
  const std::int64_t rows = (c.conv_size - 1) * (2 * c.key_width() + c.value_width());
  // Forward twice, with and without training, and backward.
  EXPECT_EQ(passed({20}), static_cast<std::size_t>(3 * c.num_hidden_layers * (state + rows)));
  EXPECT_EQ(passed({200}), passed({20}));
  EXPECT_EQ(passed({20, 20}), 0U);
}

TEST(PartOfABatch, HasItsTokensTargetsAndBoundaries) {
  TokenBatch whole;
  whole.ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  whole.targets = {1, 2, -1, 4, 5, 6, 7, 8, -1, -1};
  whole.offsets = {0, 3, 5, 10};
  const BatchPart first = part_of(whole, 0, 2);
  EXPECT_EQ(first.batch.ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(first.batch.targets, (std::vector<std::int32_t>{1, 2, -1, 4, 5}));
  EXPECT_EQ(first.batch.offsets, (std::vector<std::int64_t>{0, 3, 5}));
  EXPECT_EQ(first.batch.loss_tokens, 4);
  EXPECT_FALSE(first.enters);
  EXPECT_FALSE(first.leaves);  // a sequence ends exactly there
  const BatchPart middle = part_of(whole, 1, 3);
  EXPECT_EQ(middle.batch.ids, (std::vector<std::int32_t>{3, 4, 5}));
  EXPECT_EQ(middle.batch.offsets, (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_FALSE(middle.enters);
  EXPECT_TRUE(middle.leaves);
  const BatchPart last = part_of(whole, 2, 3);
  EXPECT_EQ(last.batch.offsets, (std::vector<std::int64_t>{0, 4}));
  EXPECT_TRUE(last.enters);
  EXPECT_FALSE(last.leaves);
  EXPECT_THROW(static_cast<void>(part_of(whole, 0, 11)), Error);
}

}  // namespace
}  // namespace qdelta::testing
