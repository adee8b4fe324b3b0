#include "infer/stop_matcher.h"

#include <deque>

namespace qdelta {

StopStrings::StopStrings(std::span<const std::string> stops) {
  for (const std::string& stop : stops) {
    std::int32_t state = 0;
    for (const char c : stop) {
      const auto byte = static_cast<unsigned char>(c);
      std::int32_t to = edge(state, byte);
      if (to < 0) {
        to = static_cast<std::int32_t>(nodes_.size());
        nodes_[static_cast<std::size_t>(state)].edges.emplace_back(byte, to);
        nodes_.push_back({.edges = {}, .depth = node(state).depth + 1});
      }
      state = to;
    }
    if (state != 0) nodes_[static_cast<std::size_t>(state)].match = node(state).depth;
  }
  // Breadth first: what is shorter is complete.
  std::deque<std::int32_t> waiting{0};
  while (!waiting.empty()) {
    const std::int32_t state = waiting.front();
    waiting.pop_front();
    for (const auto& [byte, to] : node(state).edges) {
      Node& target = nodes_[static_cast<std::size_t>(to)];
      target.suffix = state == 0 ? 0 : next(node(state).suffix, byte);
      if (target.match == 0) target.match = node(target.suffix).match;
      waiting.push_back(to);
    }
  }
}

std::size_t StopStrings::bytes() const {
  constexpr std::size_t kOfAnEdge = 32;  // an allocation, as a rule for one
  return nodes_.capacity() * sizeof(Node) + nodes_.size() * kOfAnEdge;
}

std::int32_t StopStrings::edge(std::int32_t state, unsigned char byte) const {
  for (const auto& [on, to] : node(state).edges) {
    if (on == byte) return to;
  }
  return -1;
}

std::int32_t StopStrings::next(std::int32_t state, unsigned char byte) const {
  while (true) {
    if (const std::int32_t to = edge(state, byte); to >= 0) return to;
    if (state == 0) return 0;
    state = node(state).suffix;
  }
}

std::string StopMatcher::push(const std::string& text) {
  const std::size_t before = held_.size();
  held_ += text;
  for (std::size_t i = before; i < held_.size(); ++i) {
    state_ = stops_->next(state_, static_cast<unsigned char>(held_[i]));
    if (const std::size_t length = stops_->match(state_); length > 0) {
      held_.resize(i + 1 - length);
      stopped_ = true;
      return finish();
    }
  }
  const std::size_t sure = held_.size() - stops_->depth(state_);
  std::string out = held_.substr(0, sure);
  held_.erase(0, sure);
  return out;
}

}  // namespace qdelta
