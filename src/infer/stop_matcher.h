// Finds the stop strings in text that comes in pieces. Text that may turn out to be the beginning of a stop string is
// held back until that is decided, so that no part of one is ever shown. All strings are followed at once (Aho and
// Corasick): the time is linear in the text, whatever the strings.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace qdelta {

// The stop strings as an automaton, which sequences may share. A state is the longest suffix of the text that is the
// beginning of a stop string.
class StopStrings {
 public:
  // An empty stop string matches nothing.
  explicit StopStrings(std::span<const std::string> stops);

  [[nodiscard]] std::int32_t next(std::int32_t state, unsigned char byte) const;
  // Length of the suffix that a state stands for.
  [[nodiscard]] std::size_t depth(std::int32_t state) const { return node(state).depth; }
  // Length of the longest stop string that ends here; 0 where none does.
  [[nodiscard]] std::size_t match(std::int32_t state) const { return node(state).match; }
  // About how much memory it takes.
  [[nodiscard]] std::size_t bytes() const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::int32_t>> edges;
    std::int32_t suffix = 0;  // the longest proper suffix that is a state
    std::uint32_t depth = 0, match = 0;
  };
  [[nodiscard]] const Node& node(std::int32_t state) const { return nodes_[static_cast<std::size_t>(state)]; }
  [[nodiscard]] std::int32_t edge(std::int32_t state, unsigned char byte) const;

  std::vector<Node> nodes_{1};
};

class StopMatcher {
 public:
  explicit StopMatcher(std::shared_ptr<const StopStrings> stops) : stops_(std::move(stops)) {}
  explicit StopMatcher(const std::vector<std::string>& stops) : StopMatcher(std::make_shared<StopStrings>(stops)) {}

  // Takes more text and gives what can be shown now. Where that completes a stop string it is the text before it (of
  // those that end at the same place the longest counts), and the matcher has stopped.
  std::string push(const std::string& text);
  [[nodiscard]] bool stopped() const { return stopped_; }
  // At the end of the text: what is still held back.
  std::string finish() { return std::exchange(held_, {}); }

 private:
  std::shared_ptr<const StopStrings> stops_;
  std::int32_t state_ = 0;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace qdelta
