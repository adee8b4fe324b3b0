// Texts by their bytes: which of them a text starts with is found in one walk along it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace qdelta {

class ByteTrie {
 public:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::int32_t kRoot = 0;

  ByteTrie() : nodes_(1) { first_.fill(kNone); }

  // Where a text is added twice, the last value holds.
  void add(std::string_view text, std::int32_t value);
  // From a node one byte further; kNone where no text goes on so.
  [[nodiscard]] std::int32_t child(std::int32_t node, unsigned char byte) const {
    return node == kRoot ? first_[byte] : child_of(nodes_[static_cast<std::size_t>(node)], byte);
  }
  // Of the text that ends at this node; kNone if none does.
  [[nodiscard]] std::int32_t value(std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)].value; }
  // From a node along a whole text; kNone where it leads nowhere.
  [[nodiscard]] std::int32_t follow(std::int32_t node, std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::int32_t>> children;  // in order; not those of the root
    std::int32_t value = kNone;
  };
  [[nodiscard]] static std::int32_t child_of(const Node& node, unsigned char byte);

  std::array<std::int32_t, 256> first_{};  // the root's children
  std::vector<Node> nodes_;
};

}  // namespace qdelta
