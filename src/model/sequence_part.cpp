#include "model/sequence_part.h"

#include <algorithm>
#include <type_traits>

#include "model/block_views.h"

namespace qdelta {
namespace {

using block_views::floats_of;

// Rows of a float matrix with contiguous columns.
template <class Byte>
auto* row_of(const BasicView<Byte>& matrix, std::int64_t row) {
  using Float = std::conditional_t<std::is_const_v<Byte>, const float, float>;
  return reinterpret_cast<Float*>(matrix.data) + row * matrix.step(0);
}

// The last rows of a part's last sequence: row j of `rows` is its token first + j, which is before the sequence's
// beginning in this part where that is negative.
struct LastRows {
  std::int64_t begin, first, rows;

  LastRows(const Batch& batch, std::int64_t rows_)
      : begin(batch.offsets[batch.offsets.size() - 2]), first(batch.rows() - begin - rows_), rows(rows_) {}
  [[nodiscard]] std::int64_t missing() const { return std::max<std::int64_t>(-first, 0); }
};

}  // namespace

void SequencePart::carry_rows(const Batch& batch, const ConstTensorView& x, const TensorView& own,
                              const TensorView& before) {
  const std::int64_t channels = x.extent(1);
  const LastRows last(batch, own.extent(0));
  if (last.rows == 0) return;
  for (std::int64_t j = 0; leaves_ && j < last.rows; ++j) {
    if (j < last.missing()) {
      std::fill_n(row_of(own, j), channels, 0.0F);
    } else {
      std::copy_n(row_of(x, last.begin + last.first + j), channels, row_of(own, j));
    }
  }
  carry(Way::on, floats_of(own), floats_of(before), passes(batch) && last.missing() > 0, [&] {
    for (std::int64_t j = 0; j < last.missing(); ++j) {
      std::copy_n(row_of(before, last.rows + last.first + j), channels, row_of(own, j));
    }
  });
}

void SequencePart::carry_row_gradients(const Batch& batch, const TensorView& dbefore, const TensorView& in,
                                       const TensorView& dx) {
  const std::int64_t channels = dx.extent(1);
  const LastRows last(batch, in.extent(0));
  if (last.rows == 0) return;
  const auto add = [&](std::int64_t j, float* to) {
    const float* from = row_of(in, j);
    for (std::int64_t c = 0; c < channels; ++c) to[c] += from[c];
  };
  carry(Way::back, floats_of(dbefore), floats_of(in), passes(batch) && last.missing() > 0, [&] {
    for (std::int64_t j = 0; j < last.missing(); ++j) add(j, row_of(dbefore, last.rows + last.first + j));
  });
  for (std::int64_t j = last.missing(); leaves_ && j < last.rows; ++j) add(j, row_of(dx, last.begin + last.first + j));
}

}  // namespace qdelta
