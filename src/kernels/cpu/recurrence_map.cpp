// M and N are final states of the chunk form (recurrence_chunk.cpp): N from zeros, M from the identity without values,
// whose columns are those of K states that nothing is written to. dN is the chunk form's backward of the state alone
// (there too). In the product, value columns go through in groups, each against the whole of M.
#include "kernels/cpu/recurrence_map.h"

#include <algorithm>

#include "core/threads.h"
#include "kernels/cpu/recurrence_chunk.h"

#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence_map.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/matrix-inl.h"
#include "kernels/cpu/rows-inl.h"

#ifndef QDELTA_RECURRENCE_MAP_SCRATCH
#define QDELTA_RECURRENCE_MAP_SCRATCH
namespace qdelta::cpu {
namespace {

// Of one thread of the product; K rounded up to vectors.
struct ProductScratch {
  std::int64_t Kp, ldk;
  float* m;             // [Kp][ldk]
  float *state, *sums;  // [Kp][kColumnGroupStride]

  ProductScratch(std::int64_t K, BumpAllocator& memory)
      : Kp(round_up(K, kVectorPad)),
        ldk(Kp + kVectorPad),
        m(memory.take<float>(Kp * ldk)),
        state(memory.take<float>(Kp * kColumnGroupStride)),
        sums(memory.take<float>(Kp * kColumnGroupStride)) {}
};

}  // namespace
}  // namespace qdelta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// One head of one sequence.
void MapProduct(const RecurrenceMapProduct& args, std::int64_t sequence, std::int64_t head, std::byte* memory) {
  const std::int64_t K = args.state.extent(2);
  const std::int64_t V = args.state.extent(3);
  BumpAllocator allocator(memory);
  const ProductScratch s(K, allocator);
  LoadState(state_of(args.m, sequence, head), K, s.Kp, 0, K, s.Kp, s.m, s.ldk);
  for (std::int64_t begin = 0; begin < V; begin += kColumnGroup) {
    const std::int64_t width = std::min(kColumnGroup, V - begin);
    const std::int64_t padded = round_up(width, kVectorPad);
    LoadState(state_of(args.state, sequence, head), K, s.Kp, begin, width, padded, s.state, kColumnGroupStride);
    LoadState(state_of(args.add, sequence, head), K, s.Kp, begin, width, padded, s.sums, kColumnGroupStride);
    if (args.transposed) {
      Product<Left::column_major, Into::add>(s.Kp, padded, K, s.m, s.ldk, s.state, kColumnGroupStride, s.sums,
                                             kColumnGroupStride);
    } else {
      Product<Left::row_major, Into::add>(s.Kp, padded, K, s.m, s.ldk, s.state, kColumnGroupStride, s.sums,
                                          kColumnGroupStride);
    }
    StoreState(state_of(args.out, sequence, head), K, begin, width, s.sums, kColumnGroupStride);
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(MapProduct);

namespace {

// The final states of the range from zeros, or from `h0` with `v` in the place of its values.
RecurrenceForward final_states(const RecurrenceInputs& in, const TensorView& ht) {
  RecurrenceForward forward;
  forward.in = in;
  forward.in.h0 = {};
  forward.ht = ht;
  forward.run = {.form = Form::chunk, .chunk = kDefaultChunk, .bf16_products = false};
  return forward;
}

// The identity for every head of every sequence, and no values: K floats and K x K floats of `memory`.
RecurrenceForward identity_states(const RecurrenceInputs& in, const TensorView& ht, BumpAllocator& memory) {
  const RecurrenceLayout at(in, kDefaultChunk);
  auto* zeros = memory.take<float>(at.K);
  auto* identity = memory.take<float>(at.K * at.K);
  if (zeros != nullptr) {
    std::fill_n(zeros, at.K, 0.0F);
    std::fill_n(identity, at.K * at.K, 0.0F);
    for (std::int64_t i = 0; i < at.K; ++i) identity[i * (at.K + 1)] = 1.0F;
  }
  RecurrenceForward forward = final_states(in, ht);
  forward.in.v = ConstTensorView(reinterpret_cast<const std::byte*>(zeros), DType::f32, Shape{at.B, at.T, at.HV, at.K});
  forward.in.h0 =
      ConstTensorView(reinterpret_cast<const std::byte*>(identity), DType::f32, Shape{at.N, at.HV, at.K, at.K});
  forward.in.v.stride = {0, 0, 0, 1};
  forward.in.h0.stride = {0, 0, at.K, 1};
  return forward;
}

std::size_t product_bytes(std::int64_t K) {
  BumpAllocator counter(nullptr);
  (void)ProductScratch(K, counter);
  return counter.used();
}

}  // namespace

std::size_t recurrence_map_workspace(const Device& device, const RecurrenceMap& args) {
  std::size_t bytes = 0;
  if (args.n) bytes = recurrence_chunk_workspace(device, final_states(args.in, args.n));
  if (args.m) {
    BumpAllocator counter(nullptr);
    const RecurrenceForward forward = identity_states(args.in, args.m, counter);
    bytes = std::max(bytes, counter.used() + recurrence_chunk_workspace(device, forward));
  }
  return bytes;
}

void recurrence_map(const Device& device, const RecurrenceMap& args, std::span<std::byte> workspace) {
  if (args.n) recurrence_chunk_forward(device, final_states(args.in, args.n), workspace);
  if (args.m) {
    BumpAllocator memory(workspace.data());
    const RecurrenceForward forward = identity_states(args.in, args.m, memory);
    recurrence_chunk_forward(device, forward, workspace.subspan(memory.used()));
  }
}

std::size_t recurrence_map_product_workspace(const Device& device, const RecurrenceMapProduct& args) {
  return product_bytes(args.m.extent(2)) * static_cast<std::size_t>(thread_count(device.threads));
}

void recurrence_map_product(const Device& device, const RecurrenceMapProduct& args, std::span<std::byte> workspace) {
  const std::int64_t heads = args.m.extent(1);
  const std::size_t scratch = product_bytes(args.m.extent(2));
  const auto run = HWY_DYNAMIC_DISPATCH(MapProduct);
  parallel_for(args.m.extent(0) * heads, thread_count(device.threads), [&](std::int64_t index, int worker) {
    run(args, index / heads, index % heads, workspace.data() + static_cast<std::size_t>(worker) * scratch);
  });
}

}  // namespace qdelta::cpu
#endif
