// How much a tokenizer.json may ask for. No sensible one comes near; a file made to exhaust the stack, the memory or
// the patience does.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/error.h"
#include "data/checked_json.h"

namespace qdelta {

// Of normalizers, pre-tokenizers, decoders or post-processors, those in sequences within sequences counted together.
inline constexpr std::size_t kMostSteps = 256;

inline void check_steps(const JsonAt& json, std::size_t steps) {
  if (steps > kMostSteps) json.unsupported("more than {} steps, one after the other", kMostSteps);
}

// How long all the steps together may make a text.
class GrowthLimit {
 public:
  static constexpr std::size_t kTimes = 32;
  static constexpr std::size_t kAlwaysAllowed = std::size_t{1} << 14U;

  // `what` is named in the message and not copied.
  GrowthLimit(std::size_t size, std::string_view what) : most_(kAlwaysAllowed + kTimes * size), what_(what) {}

  [[nodiscard]] std::size_t most() const { return most_; }
  void check(std::size_t size) const {
    if (size > most_) fail(Status::unsupported, "{} make the text more than {} times longer", what_, kTimes);
  }

 private:
  std::size_t most_;
  std::string_view what_;
};

}  // namespace qdelta
