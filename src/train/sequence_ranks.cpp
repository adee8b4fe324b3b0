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
  sent_.clear();  // which waits
  enters_ = enters;
  leaves_ = leaves;
}

int SequenceRanks::neighbour(int step) const {
  const int parts = ranks_.parts;
  return ranks_.group() * parts + (ranks_.part() + step + parts) % parts;
}

void SequenceRanks::send(Way way, std::span<const float> data) {
  Sent& sent = sent_.emplace_back();
  sent.data.assign(data.begin(), data.end());
  sent.request = communicator_.send_async(Device{}, std::as_bytes(std::span<const float>(sent.data)),
                                          neighbour(way == Way::on ? 1 : -1));
}

void SequenceRanks::receive(Way way, std::span<float> data) {
  communicator_.recv(Device{}, std::as_writable_bytes(data), neighbour(way == Way::on ? -1 : 1));
}

}  // namespace qdelta
