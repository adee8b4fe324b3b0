#include "data/byte_trie.h"

#include <algorithm>

namespace qdelta {

std::int32_t ByteTrie::child_of(const Node& node, unsigned char byte) {
  const auto found = std::lower_bound(node.children.begin(), node.children.end(), byte,
                                      [](const auto& child, unsigned char label) { return child.first < label; });
  return found != node.children.end() && found->first == byte ? found->second : kNone;
}

void ByteTrie::add(std::string_view text, std::int32_t value) {
  std::int32_t node = kRoot;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t next = child(node, byte);
    if (next == kNone) {
      next = static_cast<std::int32_t>(nodes_.size());
      if (node == kRoot) {
        first_[byte] = next;
      } else {
        auto& children = nodes_[static_cast<std::size_t>(node)].children;
        children.insert(std::upper_bound(children.begin(), children.end(), std::pair(byte, next)), {byte, next});
      }
      nodes_.emplace_back();
    }
    node = next;
  }
  nodes_[static_cast<std::size_t>(node)].value = value;
}

std::int32_t ByteTrie::follow(std::int32_t node, std::string_view text) const {
  for (const char c : text) {
    if (node == kNone) break;
    node = child(node, static_cast<unsigned char>(c));
  }
  return node;
}

}  // namespace qdelta
