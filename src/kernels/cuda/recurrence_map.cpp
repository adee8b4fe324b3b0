// Maps one after the other are a map. With M_s, N_s of the segments 0 ... E - 1 of a range,
//
//   N = N_{E-1} + M_{E-1} (N_{E-2} + M_{E-2} (...))       dN = dN_0 + M_0^T (dN_1 + M_1^T (...))
//   M = M_{E-1} ... M_0                                   which is N of the segments (M, M_0), (M_1, 0), (M_2, 0) ...
//
// all of them what combine_segments computes: a state that goes through E maps. So is the product of one map with a
// state.
#include "kernels/cuda/recurrence_map.h"

#include <algorithm>
#include <tuple>

#include "kernels/cuda/recurrence_chunk.h"
#include "kernels/cuda/recurrence_chunk_args.h"
#include "kernels/recurrence_check.h"
#include "kernels/recurrence_layout.h"

namespace qdelta::cuda {
namespace {

struct States {
  std::int64_t heads, keys, columns;

  [[nodiscard]] std::int64_t size() const { return heads * keys * columns; }
};

void check_dense(std::string_view name, const ConstTensorView& view) {
  require(!view || view.contiguous(), "{} must be contiguous on the GPU", name);
}

float* floats(const ConstTensorView& view, std::int64_t at) {
  return reinterpret_cast<float*>(const_cast<std::byte*>(view.data)) + at;
}

// The state `start` (null: zeros) of one sequence through `count` maps, forward or backward; N has one for each. Takes
// `passed`, memory for count + 1 states.
void pass(const Context& context, const States& shape, const float* M, const float* N, std::int64_t count,
          const float* start, bool backward, float* passed, float* out) {
  const std::int64_t map = shape.heads * shape.keys * shape.keys;
  CombineSegmentsArgs args{};
  args.dims.heads = args.dims.value_heads = static_cast<int>(shape.heads);
  args.dims.group_size = 1;
  args.dims.key_dim = static_cast<int>(shape.keys);
  args.dims.value_dim = static_cast<int>(shape.columns);
  args.sequences = 1;
  args.segments.per_sequence = args.segments.total = count + 1;  // the one behind them is the result
  args.backward = backward;
  if (start != nullptr) {
    args.start = {.data = reinterpret_cast<const std::byte*>(start),
                  .index_stride = shape.size(),
                  .head_stride = shape.keys * shape.columns,
                  .key_stride = shape.columns,
                  .columns = static_cast<int>(shape.columns)};
  }
  // Backward the maps lead from state s to state s - 1: map s - 1 of ours.
  args.M = backward ? M - map : M;
  args.N = backward ? N - shape.size() : N;
  args.states = passed;
  launch_combine_segments(context, args);
  const float* result = backward ? passed : passed + count * shape.size();
  QDELTA_CUDA(cudaMemcpyAsync(out, result, static_cast<std::size_t>(shape.size()) * sizeof(float),
                              cudaMemcpyDeviceToDevice, context.stream()));
}

std::int64_t most_segments(const MapsOfSegments& maps) {
  std::int64_t most = 0;
  for (std::size_t n = 1; n < maps.first.size(); ++n) most = std::max(most, maps.first[n] - maps.first[n - 1]);
  return most;
}

// What follows lays out its memory, and runs where there is some.

std::size_t run(const Context& context, const RecurrenceMap& args, std::byte* base) {
  const RecurrenceLayout at(args.in, kChunk);
  BumpAllocator memory(base);
  const MapsOfSegments maps = recurrence_chunk_maps(context, args, memory);
  const States values{.heads = at.HV, .keys = at.K, .columns = at.V};
  const States keys{.heads = at.HV, .keys = at.K, .columns = at.K};
  const std::int64_t most = most_segments(maps);
  auto* passed = memory.take<float>((most + 1) * std::max(values.size(), keys.size()));
  auto* added = memory.take<float>(args.m ? most * keys.size() : 0);
  if (base == nullptr) return memory.used();
  for (std::int64_t n = 0; n < at.N; ++n) {
    const std::int64_t first = maps.first[static_cast<std::size_t>(n)];
    const std::int64_t count = maps.first[static_cast<std::size_t>(n) + 1] - first;
    const float* M = maps.M + first * keys.size();
    if (args.n) {
      pass(context, values, M, maps.N + first * values.size(), count, nullptr, false, passed,
           floats(args.n, n * values.size()));
    }
    if (args.m) {
      const auto bytes = static_cast<std::size_t>(keys.size()) * sizeof(float);
      QDELTA_CUDA(cudaMemcpyAsync(added, M, bytes, cudaMemcpyDeviceToDevice, context.stream()));
      QDELTA_CUDA(
          cudaMemsetAsync(added + keys.size(), 0, static_cast<std::size_t>(count - 1) * bytes, context.stream()));
      pass(context, keys, M, added, count, nullptr, false, passed, floats(args.m, n * keys.size()));
    }
  }
  return memory.used();
}

std::size_t run(const Context& context, const RecurrenceEntryGradient& args, std::byte* base) {
  const RecurrenceLayout at(args.in, kChunk);
  BumpAllocator memory(base);
  const MapsOfSegments maps = recurrence_chunk_maps(context, args, memory);
  const States shape{.heads = at.HV, .keys = at.K, .columns = at.V};
  auto* passed = memory.take<float>((most_segments(maps) + 1) * shape.size());
  if (base == nullptr) return memory.used();
  for (std::int64_t n = 0; n < at.N; ++n) {
    const std::int64_t first = maps.first[static_cast<std::size_t>(n)];
    const std::int64_t count = maps.first[static_cast<std::size_t>(n) + 1] - first;
    pass(context, shape, maps.M + first * at.HV * at.K * at.K, maps.N + first * shape.size(), count, nullptr, true,
         passed, floats(args.dn, n * shape.size()));
  }
  return memory.used();
}

std::size_t run(const Context& context, const RecurrenceMapProduct& args, std::byte* base) {
  const Shape& of = args.state.shape;
  const States shape{.heads = of[1], .keys = of[2], .columns = of[3]};
  BumpAllocator memory(base);
  auto* passed = memory.take<float>(2 * shape.size());
  auto* zeros = memory.take<float>(args.add ? 0 : shape.size());
  if (base == nullptr) return memory.used();
  if (!args.add) {
    QDELTA_CUDA(cudaMemsetAsync(zeros, 0, static_cast<std::size_t>(shape.size()) * sizeof(float), context.stream()));
  }
  for (std::int64_t n = 0; n < of[0]; ++n) {
    const std::int64_t state = n * shape.size();
    pass(context, shape, floats(args.m, n * shape.heads * shape.keys * shape.keys),
         args.add ? floats(args.add, state) : zeros, 1, floats(args.state, state), args.transposed, passed,
         floats(args.out, state));
  }
  return memory.used();
}

void check_call(const RecurrenceMap& args) {
  check(args);
  check_dense("m", args.m);
  check_dense("n", args.n);
}

void check_call(const RecurrenceEntryGradient& args) {
  check(args);
  check_dense("dn", args.dn);
}

void check_call(const RecurrenceMapProduct& args) {
  check(args);
  require(args.state.extent(2) <= kMaxKeyDim, "K is {}; on the GPU it is at most {}", args.state.extent(2), kMaxKeyDim);
  for (const auto& [name, view] : {std::pair<const char*, ConstTensorView>{"m", args.m},
                                   {"state", args.state},
                                   {"add", args.add},
                                   {"out", args.out}}) {
    check_dense(name, view);
  }
}

template <class Args>
std::size_t bytes_of(const Context& context, const Args& args) {
  check_call(args);
  return run(context, args, nullptr);
}

template <class Args>
void check_and_run(const Context& context, const Args& args, Workspace& workspace) {
  const std::span<std::byte> memory = workspace.get(bytes_of(context, args));
  std::ignore = run(context, args, memory.data());
}

}  // namespace

std::size_t recurrence_map_workspace(const Context& context, const RecurrenceMap& args) {
  return bytes_of(context, args);
}
std::size_t recurrence_map_workspace(const Context& context, const RecurrenceEntryGradient& args) {
  return bytes_of(context, args);
}
std::size_t recurrence_map_workspace(const Context& context, const RecurrenceMapProduct& args) {
  return bytes_of(context, args);
}

void recurrence_map(const Context& context, const RecurrenceMap& args, Workspace& workspace) {
  check_and_run(context, args, workspace);
}
void recurrence_entry_gradient(const Context& context, const RecurrenceEntryGradient& args, Workspace& workspace) {
  check_and_run(context, args, workspace);
}
void recurrence_map_product(const Context& context, const RecurrenceMapProduct& args, Workspace& workspace) {
  check_and_run(context, args, workspace);
}

}  // namespace qdelta::cuda
