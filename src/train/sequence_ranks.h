// Sequences over several ranks (--sequence-parallel): groups of consecutive ranks share the tokens of a batch, each its
// part of them. What goes over the cuts between parts (model/sequence_part.h) are messages between neighbours.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "data/batch_part.h"
#include "distributed/communicator.h"
#include "model/sequence_part.h"

namespace qdelta {

// How the ranks of a run are divided: into groups that have rows of their own, and the ranks of a group into parts.
struct RankGroups {
  int ranks = 1, rank = 0;
  int parts = 1;  // ranks of a group

  RankGroups() = default;
  // Throws where the ranks cannot be divided so. Without a communicator there is one.
  RankGroups(const Communicator* communicator, std::int64_t sequence_parallel);

  [[nodiscard]] int groups() const { return ranks / parts; }
  [[nodiscard]] int group() const { return rank / parts; }
  [[nodiscard]] int part() const { return rank % parts; }
};

// The part of a batch that this rank has.
class SequenceRanks final : public SequencePart {
 public:
  SequenceRanks(Communicator& communicator, const RankGroups& ranks) : communicator_(communicator), ranks_(ranks) {}

  // Cuts a batch, which is the same on all ranks of the group; then runs of the model may ask for its neighbours. They
  // must be the same runs, in the same order, on all ranks of the group.
  [[nodiscard]] TokenBatch take(const TokenBatch& whole);
  // The same for a piece of one endless sequence, of which every rank has a stretch, in turn: after the last rank's it
  // goes on with the first's of the next piece. `first`, `last`: whether the sequence begins or ends with this stretch.
  void take_stretch(bool first, bool last);

 protected:
  void send(const Device& device, Direction direction, std::span<const float> data) override;
  void receive(const Device& device, Direction direction, std::span<float> data) override;

 private:
  [[nodiscard]] int neighbour(int step) const;
  void begin(bool enters, bool leaves);

  struct Sent {
    DeviceBuffer data;
    Request request;
  };

  Communicator& communicator_;
  RankGroups ranks_;
  // On the way, until the next batch: a rank never waits for one that comes later, which may be waiting for it. The
  // first sent_count_; the others' memory is used again.
  std::vector<Sent> sent_;
  std::size_t sent_count_ = 0;
};

}  // namespace qdelta
