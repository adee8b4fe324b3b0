// States of prompts that have been read, so that what begins alike is not read again: a radix tree over token ids,
// whose edges are the pieces in which prompts are read (prompt_piece), with a snapshot of the state after each.
//
// A prompt is cut into the same pieces with and without a cache, and a snapshot is a copy: what follows has the same
// bits. Snapshots take a bounded amount of the device's memory; those that were not used for longest go first.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "model/model_states.h"

namespace qdelta::serve {

class StateCache {
 public:
  // `bytes`: of snapshots; less than one takes: nothing is kept. `piece`: tokens between cuts.
  StateCache(const ModelConfig& config, const Device& device, std::size_t bytes, std::size_t piece);

  // Copies the state after as many pieces of the prompt as there is a snapshot of into a slot, and gives how many
  // tokens that are: fewer than the prompt has, 0 where there is none.
  [[nodiscard]] std::size_t restore(std::span<const std::int32_t> prompt, ModelStates& states, std::int64_t slot);
  // Keeps the state in a slot, which has read this prefix: whole pieces.
  void keep(std::span<const std::int32_t> prefix, const ModelStates& states, std::int64_t slot);

  [[nodiscard]] std::size_t snapshots() const { return used_.size(); }
  [[nodiscard]] std::size_t bytes() const { return (used_.size() + free_.size()) * snapshot_bytes_; }
  [[nodiscard]] std::uint64_t evicted() const { return evicted_; }

 private:
  struct Node {
    Node* parent = nullptr;
    std::map<std::vector<std::int32_t>, std::unique_ptr<Node>> children;  // by the tokens of the edge
    std::unique_ptr<ModelStates> snapshot;                                // one state; null where it has gone
    std::list<Node*>::iterator place;                                     // in used_, where there is one
  };
  void touch(Node& node);
  [[nodiscard]] std::unique_ptr<ModelStates> make_room();
  // Removes nodes that lead nowhere.
  static void prune(Node* node);

  const ModelConfig config_;
  const Device device_;
  const std::size_t piece_;
  std::size_t snapshot_bytes_ = 0, most_ = 0;
  Node root_;
  std::list<Node*> used_;  // with a snapshot, the one that was used last in front
  std::vector<std::unique_ptr<ModelStates>> free_;
  std::uint64_t evicted_ = 0;
};

}  // namespace qdelta::serve
