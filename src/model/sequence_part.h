// A batch that is one part of a longer one, whose tokens lie one after the other on several processes. A cut between
// two parts may go through a sequence: the first sequence of a part then goes on with one that began on the process
// before ("enters"), the last one goes on on the process after ("leaves"). Every token has the same targets, states and
// gradients as in the whole batch, because mixers ask for two things that lie beyond a cut:
//
//   rows    the last inputs of the short convolution, and on the way back the gradients of those
//   state   the recurrent state S_in. A part's tokens map it linearly, S_out = M S_in + N (kernels/recurrence_map.h),
//           and its gradient by dS_in = M^T dS_out + dN. Each part computes its map for itself, all at the same time;
//           what remains to be done one part after the other is a product, and a message whose size does not depend on
//           the number of tokens.
//
// Where there is no SequencePart none of this happens.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "kernels/device.h"
#include "model/batch.h"

namespace qdelta {

class SequencePart {
 public:
  SequencePart() = default;
  virtual ~SequencePart() = default;
  SequencePart(const SequencePart&) = delete;
  SequencePart& operator=(const SequencePart&) = delete;

  [[nodiscard]] bool enters() const { return enters_; }
  [[nodiscard]] bool leaves() const { return leaves_; }
  // Of a batch that may be whole.
  [[nodiscard]] static bool enters(const Batch& batch) { return batch.part != nullptr && batch.part->enters(); }
  // Whether the only sequence goes through the whole part.
  [[nodiscard]] static bool passes(const Batch& batch) {
    return batch.part->enters() && batch.part->leaves() && batch.sequences() == 1;
  }

  // From part to part, to later tokens or to earlier ones. `own` is what this part has for the next one in that
  // direction, `in` receives what the one before has for it; either only where a sequence goes over that cut. Where
  // `own` depends on `in`, through() completes it between the two. Memory of `device`, here and below.
  enum class Direction { later, earlier };
  template <class Through>
  void carry(const Device& device, Direction direction, std::span<float> own, std::span<float> in, bool depends,
             const Through& through) {
    const bool gets = direction == Direction::later ? enters_ : leaves_;
    const bool gives = direction == Direction::later ? leaves_ : enters_;
    if (gives && !depends) send(device, direction, own);
    if (gets) receive(device, direction, in);
    if (gives && depends) {
      through();
      send(device, direction, own);
    }
  }

  // The rows [W - 1, channels] of the convolution's input before the first sequence, into `before`, where it enters.
  // `x`: [N, channels] of this part. `own`: memory like `before`, float32.
  void carry_rows(const Device& device, const Batch& batch, const ConstTensorView& x, const TensorView& own,
                  const TensorView& before);
  // The gradients of those rows: `dbefore` of this part's first sequence go back, those that come are added to `dx`.
  // `in`: memory like `dbefore`.
  void carry_row_gradients(const Device& device, const Batch& batch, const TensorView& dbefore, const TensorView& in,
                           const TensorView& dx);

 protected:
  // `send` does not wait for the other to receive; what is asked of the device after it may change the memory.
  virtual void send(const Device& device, Direction direction, std::span<const float> data) = 0;
  virtual void receive(const Device& device, Direction direction, std::span<float> data) = 0;

  bool enters_ = false, leaves_ = false;
};

}  // namespace qdelta
