// Sequences that come and go, stepped together in changing batches, against each of them alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "infer/decode_step.h"
#include "infer/generating_case.h"
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

}  // namespace qdelta::testing
