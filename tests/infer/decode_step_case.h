// Sequences that come and go, stepped together in changing batches, against each of them alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "infer/decode_step.h"
#include "infer/generating_case.h"
#include "kernels/recurrence.h"
#include "testing.h"

namespace qdelta::testing {

inline void expect_steps_as_alone(const Device& device, std::string_view mixer, double tolerance) {
  const auto model = speaking_model(speaking_config(mixer));
  const auto width = static_cast<std::size_t>(model->config().vocab_size);
  const auto weights = std::make_shared<DeviceWeights>(*model, device);
  ModelStates together(model->config(), 5, device), alone(model->config(), 5, device);
  Sampler sampler(device, 5, model->config().vocab_size);
  DecodeStep step(*model, weights, together, sampler, 4);
  for (std::int64_t slot = 0; slot < 5; ++slot) sampler.start(slot, {.options = {.temperature = 0}}, {});
  ModelRunner one(*model, weights, device);
  ModelRunner other(*model, weights, device);  // reads a prompt in between, as a server does
  Random random(4);
  // Every size several times, because the second time is the one that a GPU captures.
  const std::vector<std::vector<std::int64_t>> batches{
      {0}, {0, 1}, {2, 4, 1}, {3}, {1, 0}, {4, 3, 2, 1}, {2}, {0, 2}, {4, 3, 1}, {0, 1, 2, 3}, {4}, {1, 3, 0}, {2}};
  for (const std::vector<std::int64_t>& slots : batches) {
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < slots.size(); ++i) tokens.push_back(static_cast<std::int32_t>(random.integer(97, 122)));
    std::vector<float> got(tokens.size() * width, NAN);
    std::vector<std::int32_t> next = tokens;
    step.run(slots, next);
    ASSERT_EQ(step.logits().shape, (Shape{static_cast<std::int64_t>(slots.size()), model->config().vocab_size}));
    download(device, got.data(), step.logits().data, got.size() * sizeof(float));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Tensor logits(DType::f32, {1, model->config().vocab_size});
      const std::vector<std::int64_t> offsets{0, 1}, slot{slots[i]};
      one.last_logits({std::span(tokens).subspan(i, 1), offsets}, logits.view(), {&alone, slot});
      const auto mine = got.begin() + static_cast<std::ptrdiff_t>(i * width);
      EXPECT_LE(relative_error(logits.view(), std::vector<double>(mine, mine + static_cast<std::ptrdiff_t>(width))),
                tolerance)
          << "slot " << slots[i] << " of " << slots.size();
      EXPECT_EQ(next[i], std::max_element(mine, mine + static_cast<std::ptrdiff_t>(width)) - mine);
    }
    const std::vector<std::int32_t> prompt(30, 'a');
    const std::vector<std::int64_t> offsets{0, 30};
    Tensor logits(DType::f32, {1, model->config().vocab_size});
    other.last_logits({prompt, offsets}, logits.view());
  }
}

// The same to the last bit, in batches up to some forty.
inline void expect_bits_as_alone(const Device& device, std::string_view mixer) {
  constexpr std::int64_t kSlots = 40;
  const auto model = speaking_model(speaking_config(mixer));
  const auto width = static_cast<std::size_t>(model->config().vocab_size);
  const auto weights = std::make_shared<DeviceWeights>(*model, device);
  ModelStates together(model->config(), kSlots, device), alone(model->config(), kSlots, device);
  Sampler sampler(device, kSlots, model->config().vocab_size);
  for (std::int64_t slot = 0; slot < kSlots; ++slot) sampler.start(slot, {.options = {.temperature = 0}}, {});
  DecodeStep step(*model, weights, together, sampler, kSlots);
  DecodeStep single(*model, weights, alone, sampler, 1);
  const auto logits_of = [&](DecodeStep& stepper, std::vector<std::int64_t> slots, std::vector<std::int32_t> tokens) {
    std::vector<float> logits(tokens.size() * width, NAN);
    stepper.run(slots, tokens);
    download(device, logits.data(), stepper.logits().data, logits.size() * sizeof(float));
    return logits;
  };
  Random random(6);
  for (const std::int64_t size : {1, 40, 2, 17, 9, 40, 3, 33}) {
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < size; ++i) {
      slots.push_back((7 * i + size) % kSlots);
      tokens.push_back(static_cast<std::int32_t>(random.integer(97, 122)));
    }
    const std::vector<float> got = logits_of(step, slots, tokens);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto mine = got.begin() + static_cast<std::ptrdiff_t>(i * width);
      EXPECT_TRUE(std::ranges::equal(logits_of(single, {slots[i]}, {tokens[i]}),
                                     std::span(mine, mine + static_cast<std::ptrdiff_t>(width))))
          << "slot " << slots[i] << " of " << size;
    }
  }
}

// Tokens that are read and taken back leave nothing behind, to the last bit; a neighbour goes on meanwhile.
inline void expect_tokens_taken_back(const Device& device, const ModelConfig& config) {
  const auto model = speaking_model(config);
  const auto width = static_cast<std::size_t>(model->config().vocab_size);
  const auto weights = std::make_shared<DeviceWeights>(*model, device);
  struct Result {
    std::vector<float> logits;
    std::vector<Tensor> state;
  };
  constexpr std::int64_t kSlot = 1, kNeighbour = 0;
  // Some tokens, then a detour of so many, then the others.
  const auto run = [&](std::int64_t begin, std::int64_t detour) {
    ModelStates states(model->config(), 2, device);
    Sampler sampler(device, 2, model->config().vocab_size);
    for (const std::int64_t slot : {0, 1}) sampler.start(slot, {.options = {.temperature = 0}}, {});
    DecodeStep step(*model, weights, states, sampler, 2, true);
    const auto read = [&](std::int64_t token) {
      std::vector<std::int32_t> tokens{static_cast<std::int32_t>('a' + token % 26), 'n'};
      step.run(std::vector{kSlot, kNeighbour}, tokens);
    };
    for (std::int64_t t = 0; t < begin; ++t) read(t);
    const std::int64_t kept = step.undoable(kSlot);
    EXPECT_EQ(kept, begin == 0 ? 0 : (begin - 1) % kRecentTokens + 1);
    for (std::int64_t t = 0; t < detour; ++t) read(7 * t + 3);
    if (detour > 0) {
      EXPECT_EQ(step.undoable(kSlot), kept + detour);
    }
    expect_error(Status::invalid_argument, {"take back"}, [&] { step.undo(kSlot, kept + detour + 1); });
    step.undo(kSlot, detour);
    EXPECT_EQ(step.undoable(kSlot), kept);
    Result result;
    result.logits.resize(width);
    for (std::int64_t t = 0; t < 20; ++t) read(begin + t);
    download(device, result.logits.data(), step.logits().data, width * sizeof(float));
    step.settle(kSlot);
    EXPECT_EQ(step.undoable(kSlot), 0);
    for (std::size_t i = 0; i < states.pools().size(); ++i) {
      const TensorView view = states.slot_of(i, kSlot);
      result.state.emplace_back(DType::f32, view.shape);
      download(device, result.state.back().data(), view.data, result.state.back().bytes());
    }
    return result;
  };
  for (const auto& [begin, detour] : {std::pair<std::int64_t, std::int64_t>{0, 2}, {5, 1}, {5, 11}, {18, 14}}) {
    const Result with = run(begin, detour);
    const Result without = run(begin, 0);
    EXPECT_EQ(with.logits, without.logits) << detour << " tokens from " << begin << " on";
    for (std::size_t i = 0; i < with.state.size(); ++i) {
      EXPECT_TRUE(same_bits(with.state[i], without.state[i])) << detour << " tokens from " << begin << " on";
    }
  }
}

}  // namespace qdelta::testing
