#include "serve/state_cache.h"

#include <algorithm>
#include <utility>

namespace qdelta::serve {
namespace {

constexpr std::size_t kMostFiles = 4096;

// How many tokens two texts have in common. Whole blocks first, which memcmp compares: std::mismatch takes 1.4 ns a
// token.
std::size_t common_tokens(std::span<const std::int32_t> one, std::span<const std::int32_t> other) {
  constexpr std::size_t kBlock = 64;
  const std::size_t size = std::min(one.size(), other.size());
  std::size_t at = 0;
  while (size - at >= kBlock && std::ranges::equal(one.subspan(at, kBlock), other.subspan(at, kBlock))) at += kBlock;
  while (at < size && one[at] == other[at]) ++at;
  return at;
}

}  // namespace

StateCache::StateCache(const LanguageModel& model, const Device& device, const CacheLimits& limits,
                       const PromptCuts& cuts)
    : model_(model), device_(device), limits_(limits), cuts_(cuts) {
  free_ = std::make_unique<ModelStates>(model_.config(), 1, device_);
  snapshot_bytes_ = std::max<std::size_t>(free_->bytes(), 1);
  if (!keeps()) free_.reset();
  if (!keeps() || limits_.folder.empty()) return;
  store_ = std::make_unique<StateStore>(limits_.folder, model);
  for (StateStore::Entry& entry : store_->entries()) {
    if (entry.tokens.size() % cuts_.grid != 0) continue;  // of a device with another grid
    Node& node = insert(entry.tokens);
    if (!node.file.empty()) continue;
    node.file = std::move(entry.name);
    node.size_on_disk = entry.bytes;
    file_bytes_ += entry.bytes;
    on_disk_.push_front(&node);
    node.place_on_disk = on_disk_.begin();
  }
  bound_disk();
}

StateCache::~StateCache() {
  if (store_ == nullptr) return;
  std::size_t bytes = 0;
  for (Node* node : used_) {
    bytes += cost_of(node->depth);
    if (bytes > limits_.disk) break;
    if (node->file.empty()) static_cast<void>(write_out(*node, true));
  }
  bound_disk();
}

StateCache::Walk StateCache::walk(std::span<const std::int32_t> prompt, bool whole) {
  Walk walk;
  Node* node = &root_;
  while (walk.shared < prompt.size()) {
    const auto found = node->children.find(prompt[walk.shared]);
    if (found == node->children.end()) break;
    node = found->second.get();
    const auto rest = prompt.subspan(walk.shared);
    const std::size_t common = common_tokens(node->edge, rest);
    walk.shared += common;
    if (common < node->edge.size()) break;
    if (!node->has_state() || (!whole && walk.shared == prompt.size())) continue;
    if (cuts_.allow(node->depth, prompt.size())) walk.best = node;
  }
  return walk;
}

std::size_t StateCache::longest(std::span<const std::int32_t> prompt) {
  const Node* best = walk(prompt, true).best;
  return best == nullptr ? 0 : best->depth;
}

StateCache::Found StateCache::restore(std::span<const std::int32_t> prompt, ModelStates& states, std::int64_t slot) {
  while (true) {
    const Walk found = walk(prompt, false);
    Node* const best = found.best;
    if (best == nullptr) return {.tokens = 0, .shared = found.shared};
    if (!best->file.empty()) on_disk_.splice(on_disk_.begin(), on_disk_, best->place_on_disk);
    if (best->snapshot != nullptr) {
      used_.splice(used_.begin(), used_, best->place);
      states.copy(*best->snapshot, 0, slot);
      return {.tokens = best->depth, .shared = found.shared};
    }
    if (store_->load(best->file, prompt.first(best->depth), states, slot)) {
      ++loaded_;
      const std::size_t tokens = best->depth;  // it stays: it has a file, and the one that was used last
      if (std::unique_ptr<ModelStates> snapshot = make_room(tokens); snapshot != nullptr) {
        snapshot->copy(states, slot, 0);
        put(*best, std::move(snapshot));
      }
      return {.tokens = tokens, .shared = found.shared};
    }
    states.clear(slot);  // what was damaged may be half there
    forget_file(*best);
    prune(best);
  }
}

void StateCache::keep(std::span<const std::int32_t> prefix, const ModelStates& states, std::int64_t slot) {
  if (!keeps() || prefix.empty() || prefix.size() % cuts_.grid != 0) return;
  if (const Walk found = walk(prefix, true); found.best != nullptr && found.best->depth == prefix.size()) {
    if (found.best->snapshot != nullptr) return used_.splice(used_.begin(), used_, found.best->place);
  }
  std::unique_ptr<ModelStates> snapshot = make_room(prefix.size());  // first, because it may remove nodes
  if (snapshot == nullptr) return;
  snapshot->copy(states, slot, 0);
  put(insert(prefix), std::move(snapshot));
}

void StateCache::put(Node& node, std::unique_ptr<ModelStates> snapshot) {
  used_.push_front(&node);
  node.place = used_.begin();
  node.snapshot = std::move(snapshot);
  bytes_ += cost_of(node.depth);
}

StateCache::Node& StateCache::insert(std::span<const std::int32_t> prefix) {
  Node* node = &root_;
  for (std::size_t at = 0; at < prefix.size(); at = node->depth) {
    const auto rest = prefix.subspan(at);
    std::unique_ptr<Node>& child = node->children[rest.front()];
    if (child == nullptr) {
      child = std::make_unique<Node>();
      child->parent = node;
      child->edge.assign(rest.begin(), rest.end());
      child->depth = prefix.size();
      return *child;
    }
    if (const std::size_t shared = common_tokens(child->edge, rest); shared < child->edge.size()) {
      const auto common = static_cast<std::ptrdiff_t>(shared);
      // A node between the two, where they part.
      auto between = std::make_unique<Node>();
      between->parent = node;
      between->edge.assign(child->edge.begin(), child->edge.begin() + common);
      between->depth = at + shared;
      child->edge.erase(child->edge.begin(), child->edge.begin() + common);
      child->parent = between.get();
      const std::int32_t first = child->edge.front();
      between->children.emplace(first, std::move(child));
      child = std::move(between);
    }
    node = child.get();
  }
  return *node;
}

std::vector<std::int32_t> StateCache::tokens_of(const Node& node) {
  std::vector<std::int32_t> tokens(node.depth);
  for (const Node* at = &node; at->parent != nullptr; at = at->parent) {
    std::ranges::copy(at->edge, tokens.begin() + static_cast<std::ptrdiff_t>(at->parent->depth));
  }
  return tokens;
}

std::unique_ptr<ModelStates> StateCache::make_room(std::size_t tokens) {
  if (cost_of(tokens) > limits_.memory) return nullptr;
  while (bytes_ + cost_of(tokens) > limits_.memory) evict();
  if (free_ != nullptr) return std::move(free_);
  return std::make_unique<ModelStates>(model_.config(), 1, device_);
}

void StateCache::evict() {
  Node* const oldest = used_.back();
  if (store_ != nullptr && oldest->file.empty() && !write_out(*oldest, false)) oldest->file.clear();
  used_.pop_back();
  ++evicted_;
  bytes_ -= cost_of(oldest->depth);
  free_ = std::move(oldest->snapshot);
  prune(oldest);
  bound_disk();
}

bool StateCache::write_out(Node& node, bool patience) {
  auto host = std::make_unique<ModelStates>(model_.config(), 1);
  host->copy(*node.snapshot, 0, 0);
  StateStore::Entry entry = store_->add(tokens_of(node), std::move(host), patience);
  if (entry.name.empty()) return false;
  node.file = std::move(entry.name);
  node.size_on_disk = entry.bytes;
  file_bytes_ += entry.bytes;
  on_disk_.push_front(&node);
  node.place_on_disk = on_disk_.begin();
  return true;
}

void StateCache::forget_file(Node& node) {
  store_->remove(node.file);
  node.file.clear();
  file_bytes_ -= node.size_on_disk;
  on_disk_.erase(node.place_on_disk);
}

void StateCache::bound_disk() {
  while (!on_disk_.empty() && (file_bytes_ > limits_.disk || on_disk_.size() > kMostFiles)) {
    Node* const oldest = on_disk_.back();
    forget_file(*oldest);
    prune(oldest);
  }
}

void StateCache::prune(Node* node) {
  while (node->parent != nullptr && !node->has_state() && node->children.size() < 2) {
    Node* const parent = node->parent;
    std::unique_ptr<Node>& here = parent->children.at(node->edge.front());
    if (node->children.empty()) {
      parent->children.erase(node->edge.front());
      node = parent;
      continue;
    }
    std::unique_ptr<Node> child = std::move(node->children.begin()->second);
    child->edge.insert(child->edge.begin(), node->edge.begin(), node->edge.end());
    child->parent = parent;
    here = std::move(child);
    return;
  }
}

}  // namespace qdelta::serve
