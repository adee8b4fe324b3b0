#include "train/sequence_ranks.h"

#include "core/error.h"

namespace qdelta {

RankGroups::RankGroups(const Communicator* communicator, std::int64_t sequence_parallel)
    : ranks(communicator == nullptr ? 1 : communicator->size()),
      rank(communicator == nullptr ? 0 : communicator->rank()) {
  require(sequence_parallel >= 1 && sequence_parallel <= ranks && ranks % sequence_parallel == 0,
          "--sequence-parallel {}: {} process{} cannot be divided into groups of so many; start a multiple of it with "
          "mpirun, or give another --sequence-parallel",
          sequence_parallel, ranks, ranks == 1 ? "" : "es");
  parts = static_cast<int>(sequence_parallel);
}

TokenBatch SequenceRanks::take(const TokenBatch& whole) {
  BatchPart part = part_of(whole, ranks_.part(), ranks_.parts);
  begin(part.enters, part.leaves);
  return std::move(part.batch);
}

void SequenceRanks::take_stretch(bool first, bool last) { begin(!first, !last); }

void SequenceRanks::begin(bool enters, bool leaves) {
  for (Sent& sent : std::span(sent_).first(sent_count_)) sent.request.wait();
  sent_count_ = 0;
  enters_ = enters;
  leaves_ = leaves;
}

int SequenceRanks::neighbour(int step) const {
  const int parts = ranks_.parts;
  return ranks_.group() * parts + (ranks_.part() + step + parts) % parts;
}

void SequenceRanks::send(const Device& device, Direction direction, std::span<const float> data) {
  if (sent_count_ == sent_.size()) sent_.emplace_back();
  Sent& sent = sent_[sent_count_++];
  sent.data.grow(device, data.size_bytes());
  copy_on_device(device, sent.data.data(), data.data(), data.size_bytes());
  sent.request = communicator_.send_async(device, {sent.data.data(), data.size_bytes()},
                                          neighbour(direction == Direction::later ? 1 : -1));
}

void SequenceRanks::receive(const Device& device, Direction direction, std::span<float> data) {
  communicator_.recv(device, std::as_writable_bytes(data), neighbour(direction == Direction::later ? -1 : 1));
}

}  // namespace qdelta
