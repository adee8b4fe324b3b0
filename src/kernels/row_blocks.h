// How far the bits of a row depend on the rows beside it: texts that may be cut anywhere on a grid, and steps.
#pragma once

#include <cstdint>

namespace qdelta {

// While one exists, what a text leaves behind has the same bits however many tokens of it this thread gives to a call,
// as long as calls begin at multiples of kRowBlock from its beginning, and on a GPU such as complete a segment of
// kSegmentTokens begin where one begins (infer/prompt_cuts.h). Matrix products y = x w^T then sum up each row in an
// order that the number of rows does not change: on the CPU they take blocks of kRowBlock rows and the rest as it would
// be alone, on a GPU the algorithm for a fixed number of rows, whatever there are. One token is a text like any other.
inline constexpr std::int64_t kRowBlock = 128;
// Recurrences scan chunk after chunk. A GPU would then have little to do for one long text: its segments are scanned in
// parallel, and the state between two of them is always what the first one's map makes of the state before it
// (Execution::segment_tokens), which the scan of its tokens gives to rounding only. Hence the rule above: to have the
// map, a call must have the whole segment. A segment is short, because a text that goes on past one must be read again
// from where the segment began.
inline constexpr std::int64_t kSegmentTokens = 512;

class RowBlocks {
 public:
  RowBlocks() : before_(fixed_) { fixed_ = true; }
  ~RowBlocks() { fixed_ = before_; }
  RowBlocks(const RowBlocks&) = delete;
  RowBlocks& operator=(const RowBlocks&) = delete;

  [[nodiscard]] static bool fixed() { return fixed_; }

 private:
  static inline thread_local bool fixed_ = false;
  bool before_;
};

// While one exists, rows of y = x w^T are summed up as each would be alone, however many there are: a step's rows are
// of different sequences, which come and go.
class RowsAlone {
 public:
  RowsAlone() : before_(alone_) { alone_ = true; }
  ~RowsAlone() { alone_ = before_; }
  RowsAlone(const RowsAlone&) = delete;
  RowsAlone& operator=(const RowsAlone&) = delete;

  [[nodiscard]] static bool wanted() { return alone_; }

 private:
  static inline thread_local bool alone_ = false;
  bool before_;
};

}  // namespace qdelta
