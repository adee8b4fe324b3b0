// Finds the stop strings in text that comes in pieces. Text that may turn out to be the beginning of a stop string is
// held back until that is decided, so that no part of one is ever shown.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace qdelta {

class StopMatcher {
 public:
  // An empty stop string matches nothing.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes more text and gives what can be shown now. Where that completes a stop string it is the text before the
  // first one, and the matcher has stopped.
  std::string push(const std::string& text) {
    held_ += text;
    if (const std::size_t at = first_match(); at != std::string::npos) {
      held_.resize(at);
      stopped_ = true;
      return finish();
    }
    return release(held_.size() - longest_partial_match());
  }
  [[nodiscard]] bool stopped() const { return stopped_; }
  // At the end of the text: what is still held back.
  std::string finish() { return std::exchange(held_, {}); }

 private:
  // Where the first of the stop strings begins in the held text; npos where there is none.
  [[nodiscard]] std::size_t first_match() const {
    std::size_t first = std::string::npos;
    for (const std::string& stop : stops_) {
      if (!stop.empty()) first = std::min(first, held_.find(stop));
    }
    return first;
  }
  // Length of the longest suffix of the held text that is a prefix of a stop string.
  [[nodiscard]] std::size_t longest_partial_match() const {
    std::size_t longest = 0;
    for (const std::string& stop : stops_) {
      for (std::size_t n = std::min(stop.size(), held_.size()); n > longest; --n) {
        if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) longest = n;
      }
    }
    return longest;
  }
  std::string release(std::size_t count) {
    std::string out = held_.substr(0, count);
    held_.erase(0, count);
    return out;
  }

  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace qdelta
