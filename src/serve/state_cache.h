// States of prompts that have been read, so that what begins alike is not read again: a radix tree over token ids, with
// snapshots of the states that their prefixes left behind.
//
// A prompt may be cut at certain places without a change of bits (infer/prompt_cuts.h), and a snapshot is a copy: what
// follows one has the bits that it would have without. Snapshots are taken on the grid only, and used only where the
// prompt may be cut. They take a bounded amount of the device's memory; those that were not used for longest go first,
// to the disk where there is a place for them, and from there likewise.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "infer/prompt_cuts.h"
#include "model/language_model.h"
#include "serve/state_store.h"

namespace qdelta::serve {

struct CacheLimits {
  std::size_t memory = std::size_t{512} << 20U;  // bytes of the device, and of the tokens; 0: none is kept
  std::string folder;                            // for what is to outlive the process; empty: none
  std::size_t disk = std::size_t{4} << 30U;      // bytes in it
};

class StateCache {
 public:
  StateCache(const LanguageModel& model, const Device& device, const CacheLimits& limits, const PromptCuts& cuts);
  // Writes what is not on disk yet, those that were used last first.
  ~StateCache();
  StateCache(const StateCache&) = delete;
  StateCache& operator=(const StateCache&) = delete;

  [[nodiscard]] bool keeps() const { return limits_.memory >= snapshot_bytes_; }
  struct Found {
    std::size_t tokens = 0;  // that the snapshot has read; 0: there is none
    std::size_t shared = 0;  // with which some text begins that was read before
  };
  // Copies the longest snapshot of a prefix at which the prompt may be cut into a slot. The last token is always left
  // to read: only so are there logits for the next one.
  [[nodiscard]] Found restore(std::span<const std::int32_t> prompt, ModelStates& states, std::int64_t slot);
  // How far restore() would get, without doing it.
  [[nodiscard]] std::size_t longest(std::span<const std::int32_t> prompt);
  // Keeps the state in a slot, which has read this prefix, if it ends on the grid.
  void keep(std::span<const std::int32_t> prefix, const ModelStates& states, std::int64_t slot);

  [[nodiscard]] std::size_t snapshots() const { return used_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t evicted() const { return evicted_; }
  [[nodiscard]] std::size_t files() const { return on_disk_.size(); }
  [[nodiscard]] std::size_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] std::uint64_t loaded() const { return loaded_; }

 private:
  struct Node {
    Node* parent = nullptr;
    std::vector<std::int32_t> edge;                          // the tokens that lead here from the parent
    std::map<std::int32_t, std::unique_ptr<Node>> children;  // by the first token of their edges
    std::size_t depth = 0;                                   // tokens from the root
    std::unique_ptr<ModelStates> snapshot;                   // one state; null where there is none in memory
    std::list<Node*>::iterator place;                        // in used_, where there is one
    std::string file;                                        // in the store; empty where there is none
    std::size_t size_on_disk = 0;
    std::list<Node*>::iterator place_on_disk;

    [[nodiscard]] bool has_state() const { return snapshot != nullptr || !file.empty(); }
  };
  struct Walk {
    Node* best = nullptr;    // the deepest with a state that can be used
    std::size_t shared = 0;  // tokens that the tree has
  };
  // `whole`: the prompt may be used up.
  [[nodiscard]] Walk walk(std::span<const std::int32_t> prompt, bool whole);
  [[nodiscard]] Node& insert(std::span<const std::int32_t> prefix);
  [[nodiscard]] static std::vector<std::int32_t> tokens_of(const Node& node);
  [[nodiscard]] std::size_t cost_of(std::size_t tokens) const {
    return snapshot_bytes_ + tokens * sizeof(std::int32_t);
  }
  // Memory for a snapshot of so many tokens. May remove nodes.
  [[nodiscard]] std::unique_ptr<ModelStates> make_room(std::size_t tokens);
  void put(Node& node, std::unique_ptr<ModelStates> snapshot);
  void evict();
  [[nodiscard]] bool write_out(Node& node, bool patience);
  void forget_file(Node& node);
  void bound_disk();
  // Removes nodes that lead nowhere, and such as only stand between two others.
  static void prune(Node* node);

  const LanguageModel& model_;
  const Device device_;
  const CacheLimits limits_;
  const PromptCuts cuts_;
  std::size_t snapshot_bytes_ = 0, bytes_ = 0, file_bytes_ = 0;
  Node root_;
  std::list<Node*> used_, on_disk_;  // with a snapshot, with a file; the one that was used last in front
  std::unique_ptr<ModelStates> free_;
  std::unique_ptr<StateStore> store_;
  std::uint64_t evicted_ = 0, loaded_ = 0;
};

}  // namespace qdelta::serve
