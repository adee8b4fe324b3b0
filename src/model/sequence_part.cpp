#include "model/sequence_part.h"

#include <algorithm>

#include "kernels/layers.h"
#include "model/block_views.h"

namespace qdelta {
namespace {

using block_views::floats_of;
using block_views::narrowed;

// The last rows of a part's last sequence: row j of `rows` is its token first + j, which is before the sequence's
// beginning in this part where that is negative.
struct LastRows {
  std::int64_t begin, first, rows;

  LastRows(const Batch& batch, std::int64_t rows_)
      : begin(batch.offsets[batch.offsets.size() - 2]), first(batch.rows() - begin - rows_), rows(rows_) {}
  [[nodiscard]] std::int64_t missing() const { return std::max<std::int64_t>(-first, 0); }

  // Those that this part has: among its tokens, and among the `rows`.
  template <class View>
  [[nodiscard]] View among_tokens(const View& x) const {
    return narrowed(x, 0, begin + first + missing(), rows - missing());
  }
  [[nodiscard]] TensorView here(const TensorView& all) const { return narrowed(all, 0, missing(), rows - missing()); }
  // Those that it has not: among the rows that it gives, and among those that it was given.
  [[nodiscard]] TensorView elsewhere(const TensorView& all) const { return narrowed(all, 0, 0, missing()); }
  [[nodiscard]] TensorView given(const TensorView& before) const {
    return narrowed(before, 0, rows + first, missing());
  }
};

}  // namespace

void SequencePart::carry_rows(const Device& device, const Batch& batch, const ConstTensorView& x, const TensorView& own,
                              const TensorView& before) {
  const LastRows last(batch, own.extent(0));
  if (last.rows == 0) return;
  if (leaves_) {
    clear(device, own.data, floats_of(own).size_bytes());
    copy_rows(device, {.from = last.among_tokens(x), .to = last.here(own)});
  }
  carry(device, Direction::later, floats_of(own), floats_of(before), passes(batch) && last.missing() > 0,
        [&] { copy_rows(device, {.from = last.given(before), .to = last.elsewhere(own)}); });
}

void SequencePart::carry_row_gradients(const Device& device, const Batch& batch, const TensorView& dbefore,
                                       const TensorView& in, const TensorView& dx) {
  const LastRows last(batch, in.extent(0));
  if (last.rows == 0) return;
  carry(device, Direction::earlier, floats_of(dbefore), floats_of(in), passes(batch) && last.missing() > 0,
        [&] { copy_rows(device, {.from = last.elsewhere(in), .to = last.given(dbefore), .add = true}); });
  if (leaves_) copy_rows(device, {.from = last.here(in), .to = last.among_tokens(dx), .add = true});
}

}  // namespace qdelta
