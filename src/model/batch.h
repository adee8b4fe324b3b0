// The tokens of a call, and what memory for them is planned for.
#pragma once

#include <cstdint>
#include <span>

namespace qdelta {

class SequencePart;

// N rows of all sequences together, sequence n being rows [offsets[n], offsets[n + 1]).
struct Batch {
  std::span<const std::int64_t> offsets;
  std::span<const std::int64_t> device_offsets;  // the same, where kernels can read them
  SequencePart* part = nullptr;                  // where sequences go on on other processes (sequence_part.h)

  [[nodiscard]] std::int64_t rows() const { return offsets.back(); }
  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  // The length of every sequence; 0 where they differ.
  [[nodiscard]] std::int64_t common_length() const {
    const std::int64_t length = offsets[1] - offsets[0];
    for (std::size_t n = 1; n + 1 < offsets.size(); ++n) {
      if (offsets[n + 1] - offsets[n] != length) return 0;
    }
    return length;
  }
};

// What a backward computes again instead of having it from its forward.
enum class Recompute {
  none,  // little: what costs next to nothing
  some,  // what is large for the time it takes: the convolution, the recurrence's chunk matrices, the MLP's first
         // product
  all    // whole blocks, from the residual stream on entry to them
};

// A batch whose memory is planned: where its sequences begin, and whether the forward saves for a backward.
struct BatchShape {
  std::span<const std::int64_t> offsets;
  bool training = false;
  Recompute recompute = Recompute::none;
  bool part = false;  // sequences may go on on other processes

  [[nodiscard]] std::int64_t rows() const { return offsets.back(); }
  // Whether what is large for the time it takes stays in memory until the backward.
  [[nodiscard]] bool keeps_large() const { return !training || recompute != Recompute::some; }
};

}  // namespace qdelta
