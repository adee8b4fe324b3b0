#include "serve/state_cache.h"

#include <algorithm>
#include <utility>

namespace qdelta::serve {

StateCache::StateCache(const ModelConfig& config, const Device& device, std::size_t bytes, std::size_t piece)
    : config_(config), device_(device), piece_(piece) {
  if (bytes == 0) return;
  free_.push_back(std::make_unique<ModelStates>(config_, 1, device_));
  snapshot_bytes_ = std::max<std::size_t>(free_.front()->bytes(), 1);
  most_ = bytes / snapshot_bytes_;
  if (most_ == 0) free_.clear();
}

void StateCache::touch(Node& node) { used_.splice(used_.begin(), used_, node.place); }

std::size_t StateCache::restore(std::span<const std::int32_t> prompt, ModelStates& states, std::int64_t slot) {
  Node* node = &root_;
  Node* best = nullptr;
  std::size_t tokens = 0;
  // The last token must be left to read: only so are there logits for the next one.
  for (std::size_t at = 0; most_ > 0 && at + piece_ < prompt.size(); at += piece_) {
    const auto edge = prompt.subspan(at, piece_);
    const auto found = node->children.find(std::vector<std::int32_t>(edge.begin(), edge.end()));
    if (found == node->children.end()) break;
    node = found->second.get();
    if (node->snapshot == nullptr) continue;
    best = node;
    tokens = at + piece_;
  }
  if (best == nullptr) return 0;
  touch(*best);
  states.copy(*best->snapshot, 0, slot);
  return tokens;
}

void StateCache::keep(std::span<const std::int32_t> prefix, const ModelStates& states, std::int64_t slot) {
  if (most_ == 0 || prefix.empty() || prefix.size() % piece_ != 0) return;
  std::vector<std::vector<std::int32_t>> edges;
  for (std::size_t at = 0; at < prefix.size(); at += piece_) {
    const auto edge = prefix.subspan(at, piece_);
    edges.emplace_back(edge.begin(), edge.end());
  }
  Node* node = &root_;
  for (const auto& edge : edges) {
    const auto found = node->children.find(edge);
    node = found == node->children.end() ? nullptr : found->second.get();
    if (node == nullptr) break;
  }
  if (node != nullptr && node->snapshot != nullptr) return touch(*node);
  // First, because it may remove nodes on the way.
  std::unique_ptr<ModelStates> snapshot = make_room();
  snapshot->copy(states, slot, 0);
  node = &root_;
  for (auto& edge : edges) {
    std::unique_ptr<Node>& child = node->children[std::move(edge)];
    if (child == nullptr) {
      child = std::make_unique<Node>();
      child->parent = node;
    }
    node = child.get();
  }
  used_.push_front(node);
  node->place = used_.begin();
  node->snapshot = std::move(snapshot);
}

std::unique_ptr<ModelStates> StateCache::make_room() {
  if (!free_.empty()) {
    std::unique_ptr<ModelStates> one = std::move(free_.back());
    free_.pop_back();
    return one;
  }
  if (used_.size() < most_) return std::make_unique<ModelStates>(config_, 1, device_);
  Node* const oldest = used_.back();
  used_.pop_back();
  ++evicted_;
  std::unique_ptr<ModelStates> one = std::move(oldest->snapshot);
  prune(oldest);
  return one;
}

void StateCache::prune(Node* node) {
  while (node->parent != nullptr && node->snapshot == nullptr && node->children.empty()) {
    Node* const parent = node->parent;
    std::erase_if(parent->children, [node](const auto& child) { return child.second.get() == node; });
    node = parent;
  }
}

}  // namespace qdelta::serve
