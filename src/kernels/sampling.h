// Sampling: the next token of each row of logits.
//
//   z[v]   logits; of tokens already seen, divided by the repetition penalty where positive, multiplied where negative;
//          plus the row's bias, from which each drawn token takes the frequency penalty, and its first draw the
//          presence penalty; -infinity of tokens that may not be drawn yet
//   w[v]   exp((z[v] - max z) / temperature) of the candidates, 0 of all other tokens
//   token  drawn with probability w[v] / sum w;  at temperature 0 the most likely one
//
// The candidates are the top_k most likely tokens (of equally likely ones the smaller id first), of these the ones with
// w[v] >= min_p, and of these the first that together reach top_p of their sum.
//
// A row is sampled with the state of a slot: its own options, random numbers and tokens seen. What it draws therefore
// does not depend on the other rows, nor on which row it is. Random numbers are SplitMix64's on the CPU and Philox's on
// a GPU: the two draw different tokens from the same distribution.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/workspace.h"

namespace qdelta {

struct SamplingOptions {
  float temperature = 0.8F;         // 0: always the most likely token
  int top_k = 0;                    // only the k most likely; 0: all
  float top_p = 1.0F;               // only the most likely that together reach p
  float min_p = 0.0F;               // only those at least min_p times as likely as the most likely
  float repetition_penalty = 1.0F;  // divides (or multiplies, if negative) the logits of tokens already seen
  float presence_penalty = 0.0F;    // subtracted from the logits of tokens that have been drawn
  float frequency_penalty = 0.0F;   // the same for each time
  std::uint64_t seed = 0;

  // Throws with the option and what is wrong with it.
  void check() const;
};

struct SamplingState {
  SamplingOptions options = {};
  std::uint64_t stream = 0;     // separates the random numbers of sequences that have the same seed
  std::uint64_t draws = 0;      // tokens drawn so far, which is the position in the stream
  std::uint64_t first_end = 0;  // draws before which ...
  std::array<std::int32_t, 8> ends = {-1, -1, -1, -1, -1, -1, -1, -1};  // ... these are not drawn; negative: none
  bool biased = false;                                                  // the slot's bias is not all zeros
  // Whether the slot's bias has to be read and kept.
  [[nodiscard]] constexpr bool uses_bias() const {
    return biased || options.presence_penalty != 0 || options.frequency_penalty != 0;
  }
};

// 32-bit words of a set of tokens with one bit each.
[[nodiscard]] constexpr std::int64_t seen_words(std::int64_t vocabulary) { return (vocabulary + 31) / 32; }

// On a GPU the views and all spans are device memory, and what they hold is not checked.
struct Sample {
  ConstTensorView logits;  // [R, vocabulary] float32; on a GPU also bfloat16
  // [R]: the row's state, which no other row has; negative: the row is skipped. Empty: row r has state r.
  std::span<const std::int64_t> slots = {};
  std::span<SamplingState> states;  // [P]; draws are counted up
  std::span<std::uint32_t> seen;    // [P, seen_words(vocabulary)]: tokens to penalise; the one drawn is added
  // [P, vocabulary], added to the logits of slots that use it, and [P, seen_words(vocabulary)], the tokens drawn. Both
  // may be empty where no slot does.
  std::span<float> bias = {};
  std::span<std::uint32_t> drawn = {};
  std::span<std::int32_t> tokens;  // [R], written; -1 for a row that has a NaN
};
void sample(const Device& device, const Sample& args, Workspace& workspace);

}  // namespace qdelta
