// A batch cut into parts that pass each other states and rows, as the ranks of --sequence-parallel do, on any device:
// threads of one process, of which one at a time runs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>
#include <vector>

#include "data/batch_part.h"
#include "kernels/device_thread.h"
#include "model/model_case.h"
#include "model/sequence_part.h"
#include "testing.h"

namespace qdelta::testing {

class Mail {
 public:
  // A part holds it while it runs, and lends it to the others while it waits for a message.
  [[nodiscard]] std::unique_lock<std::mutex> turn() { return std::unique_lock(mutex_); }

  void put(int from, int to, std::vector<float> data) {
    floats_ += data.size();
    messages_[{from, to}].push(std::move(data));
    changed_.notify_all();
  }
  std::vector<float> get(std::unique_lock<std::mutex>& turn, int from, int to) {
    auto& queue = messages_[{from, to}];
    changed_.wait(turn, [&] { return !queue.empty(); });
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
  ThreadPart(Mail& mail, std::unique_lock<std::mutex>& turn, int index, bool enters, bool leaves)
      : mail_(mail), turn_(turn), index_(index) {
    enters_ = enters;
    leaves_ = leaves;
  }

 protected:
  void send(const Device& device, Direction direction, std::span<const float> data) override {
    std::vector<float> copy(data.size());
    download(device, copy.data(), data.data(), data.size_bytes());
    mail_.put(index_, index_ + (direction == Direction::later ? 1 : -1), std::move(copy));
  }
  void receive(const Device& device, Direction direction, std::span<float> data) override {
    const std::vector<float> got = mail_.get(turn_, index_ + (direction == Direction::later ? -1 : 1), index_);
    ASSERT_EQ(got.size(), data.size());
    upload(device, data.data(), got.data(), data.size_bytes());
    synchronize(device);
  }

 private:
  Mail& mail_;
  std::unique_lock<std::mutex>& turn_;
  int index_;
};

struct Computed {
  std::vector<float> losses;      // of every token, without training
  std::vector<double> gradients;  // of the mean loss
  double loss = 0;
  std::size_t floats_passed = 0;
};

inline Computed run_part(const LanguageModel& model, const TokenBatch& whole, const BatchPart& cut, SequencePart* part,
                         Recompute recompute, const Device& device) {
  Computed out;
  ModelRunner runner(model, device, recompute);
  const ModelInput input{cut.batch.ids, cut.batch.offsets, part};
  out.losses.resize(cut.batch.ids.size());
  runner.losses(input, cut.batch.targets, out.losses);
  std::vector<float> gradients(static_cast<std::size_t>(model.layout().size));
  DeviceBuffer there(device, gradients.size() * sizeof(float));
  out.loss = runner.loss_and_gradients(input, cut.batch.targets,
                                       {reinterpret_cast<float*>(there.data()), gradients.size()}, whole.loss_tokens);
  download(device, gradients.data(), there.data(), there.size());
  out.gradients.assign(gradients.begin(), gradients.end());
  return out;
}

inline Computed run_in_parts(const LanguageModel& model, const TokenBatch& whole, int parts, Recompute recompute,
                             const Device& device = {.threads = 1}) {
  Computed out;
  Mail mail;
  std::vector<Computed> of_parts(static_cast<std::size_t>(parts));
  std::vector<std::thread> threads;
  for (int index = 0; index < parts; ++index) {
    threads.emplace_back([&, index] {
      use_in_this_thread(device);
      std::unique_lock<std::mutex> turn = mail.turn();
      const BatchPart cut = part_of(whole, index, parts);
      ThreadPart neighbours(mail, turn, index, cut.enters, cut.leaves);
      of_parts[static_cast<std::size_t>(index)] =
          run_part(model, whole, cut, parts > 1 ? &neighbours : nullptr, recompute, device);
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

inline TokenBatch batch_of(std::int64_t vocabulary, const std::vector<std::int64_t>& lengths) {
  TokenCase tokens(5, vocabulary, lengths);
  TokenBatch batch;
  batch.loss_tokens = std::ranges::count_if(tokens.targets, [](auto target) { return target >= 0; });
  batch.ids = std::move(tokens.ids);
  batch.targets = std::move(tokens.targets);
  batch.offsets = std::move(tokens.offsets);
  return batch;
}

// The gradients with each sequence in a batch of its own, which no part has anything to do with.
inline std::vector<double> gradients_one_by_one(const LanguageModel& model, const TokenBatch& whole) {
  std::vector<double> sum(static_cast<std::size_t>(model.layout().size));
  for (std::size_t n = 0; n + 1 < whole.offsets.size(); ++n) {
    const std::int64_t begin = whole.offsets[n];
    const std::int64_t end = whole.offsets[n + 1];
    BatchPart alone;
    alone.batch.ids.assign(whole.ids.begin() + begin, whole.ids.begin() + end);
    alone.batch.targets.assign(whole.targets.begin() + begin, whole.targets.begin() + end);
    alone.batch.offsets = {0, end - begin};
    const Computed one = run_part(model, whole, alone, nullptr, Recompute::none, {.threads = 1});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += one.gradients[i];
  }
  return sum;
}

inline std::vector<double> doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

inline void expect_alike(const Computed& parts, const Computed& whole, double losses = 1e-5, double gradients = 3e-5) {
  EXPECT_LE(relative_error(doubles(parts.losses), doubles(whole.losses)), losses);
  EXPECT_NEAR(parts.loss, whole.loss, losses * whole.loss);
  EXPECT_LE(relative_error(parts.gradients, whole.gradients), gradients);
}

}  // namespace qdelta::testing
