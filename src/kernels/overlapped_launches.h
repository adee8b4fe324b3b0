// Kernels that start under each other's tails.
#pragma once

namespace qdelta {

// While one exists, a kernel that this thread launches on a GPU may begin before the one ahead of it has ended: it
// fetches what none of them writes, then waits for all of them to be done (griddepcontrol, compute capability 9.0). In
// its scope therefore no kernel may write what another one fetches early: weights are left alone, and the part of a
// recurrent state that a kernel updates belongs to that kernel. Not every kernel
// overlaps: a scope begins with one that does not, the embedding, so that all before the scope is done when others
// fetch early. Nothing happens on the CPU.
class OverlappedLaunches {
 public:
  explicit OverlappedLaunches(bool overlap = true) : before_(on_) { on_ = overlap; }
  ~OverlappedLaunches() { on_ = before_; }
  OverlappedLaunches(const OverlappedLaunches&) = delete;
  OverlappedLaunches& operator=(const OverlappedLaunches&) = delete;

  [[nodiscard]] static bool on() { return on_; }

 private:
  static inline thread_local bool on_ = false;
  bool before_;
};

}  // namespace qdelta
