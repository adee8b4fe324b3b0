// Text that is being generated, with the strings that end it. What may turn out to be the beginning of a stop string is
// held back until it is certain.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace qdelta {

class HeldText {
 public:
  explicit HeldText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // More text; gives what is now certain. Where a stop string is complete that is the text before it, and the end.
  std::string push(const std::string& text) {
    held_ += text;
    if (const std::size_t at = first_stop(); at != std::string::npos) {
      held_.resize(at);
      stopped_ = true;
      return finish();
    }
    return release(held_.size() - longest_open_stop());
  }
  [[nodiscard]] bool stopped() const { return stopped_; }
  // What is still held.
  std::string finish() { return std::exchange(held_, {}); }

 private:
  // Where the first of the stop strings begins in the held text; npos where there is none.
  [[nodiscard]] std::size_t first_stop() const {
    std::size_t first = std::string::npos;
    for (const std::string& stop : stops_) {
      if (!stop.empty()) first = std::min(first, held_.find(stop));
    }
    return first;
  }
  // Length of the longest end of the held text that is the beginning of a stop string.
  [[nodiscard]] std::size_t longest_open_stop() const {
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
