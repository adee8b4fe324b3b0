// What a rendering may still use, and how it says that something is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "template/jinja.h"

namespace qdelta::jinja {

[[nodiscard]] inline Error not_supported(std::string_view what, int line) {
  return {Status::unsupported, fmt::format("the chat template uses {} (line {}), which is not supported", what, line)};
}

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), steps_left_(limits.steps) {}

  int line = 0;  // of what is being evaluated

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(Status::invalid_argument,
                fmt::format("the chat template, line {}: {}", line, fmt::format(format, std::forward<Args>(args)...)));
  }
  [[noreturn]] void unsupported(std::string_view what) const { throw not_supported(what, line); }

  void charge(std::size_t steps) {
    if (steps > static_cast<std::size_t>(steps_left_)) fail("takes more than {} steps", limits_.steps);
    steps_left_ -= static_cast<std::int64_t>(steps);
  }
  // For text that is made: bytes are cheaper than steps, but memory for all of them must be bounded too.
  void charge_bytes(std::size_t bytes) {
    if (bytes > limits_.output) fail("makes a text of more than {} bytes", limits_.output);
    charge(1 + bytes / 16);
  }
  // For one level of a recursion.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(&budget) {
      if (++budget.depth_ > budget.limits_.depth) {
        --budget.depth_;
        budget.fail("nests more than {} levels deep", budget.limits_.depth);
      }
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --budget_->depth_; }

   private:
    Budget* budget_;
  };

  [[nodiscard]] const Limits& limits() const { return limits_; }

 private:
  Limits limits_;
  std::int64_t steps_left_;
  int depth_ = 0;
};

// Lists and dicts within each other; deeper ones could not be taken apart without a deep stack.
inline constexpr int kDeepestValue = 200;

}  // namespace qdelta::jinja
