// delta = softplus(dt + dt_bias),  A = -exp(A_log),  h[n] <- exp(delta A[n]) h[n] + delta B[n] x,
// p = sum_n C[n] h[n] + skip x,  y = p silu(z)
//   backward, from the last token to the first, G the gradient of h, h' the state before the token:
//     dp = dy silu(z)            dz = dy p silu'(z)         G[n] += C[n] dp              dC[n] = sum_d dp h[n]
//     dB[n] = sum_d G[n] delta x       dx = skip dp + delta sum_n G[n] B[n]              E[n] = G[n] exp(delta A[n])
//     ddelta = sum_n E[n] h'[n] A[n] + x sum_n G[n] B[n]    dA_log[n] += E[n] h'[n] delta A[n]          G <- E
//
// Channels fill vectors. A tile of kTile channels goes through a sequence with its states in the nearest cache. The
// backward takes a group of tiles at a time, chunk of tokens by chunk, so that the sums over channels, dB and dC, are
// taken lane by lane over the tiles of a group, then over the lanes and at last over the groups, always in that order.
// Sums over tokens are taken span by span; a span is some sequences. Both depend on the shapes alone.
#include "kernels/cpu/selective_scan.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/threads.h"
#include "kernels/cpu/view_check.h"

#ifndef QDELTA_SELECTIVE_SCAN_SHAPES
#define QDELTA_SELECTIVE_SCAN_SHAPES
namespace qdelta::cpu {
namespace {

constexpr std::int64_t kTile = 16;           // channels that go through time together
constexpr std::int64_t kChannelGroup = 128;  // channels whose sums over channels are one partial sum
constexpr std::int64_t kMostSpans = 16;

template <class Float>
struct Matrix {
  Float* data = nullptr;
  std::int64_t ld = 0;
  [[nodiscard]] Float* row(std::int64_t r) const { return data + r * ld; }
};
using Input = Matrix<const float>;
using Output = Matrix<float>;

// The inputs as the loops read them. States are [N][D].
struct ScanArgs {
  Input x, dt, B, C, z;
  const float *A_log = nullptr, *skip = nullptr, *dt_bias = nullptr;
  std::int64_t D = 0, N = 0;
};

// Rows of one sequence, for some channels.
struct ScanUnit {
  Output y;
  const float* h0 = nullptr;      // null: zeros
  float* ht = nullptr;            // null: not wanted
  float* chunk_states = nullptr;  // null: not wanted
  std::int64_t begin = 0, end = 0;
  std::int64_t first_channel = 0, last_channel = 0;
};

// What a thread of the backward works in.
struct ScanBackwardScratch {
  float* before;  // [kScanChunk][N][kTile]: the states before each token
  float* decay;   // likewise
  float* sums;    // [kScanChunk][2 N][kTile]: dB and dC, lane by lane
  float* G;       // [kChannelGroup / kTile][N][kTile]
};

struct Gradients {
  Input dy;
  Output dx, ddt, dz;
  const float *d_ht = nullptr, *chunk_states = nullptr;
  float* dh0 = nullptr;
  // Of this span: [N + 2][D], for dA_log (by state), dskip and ddt_bias. Of this group: [T][2 N], for dB and dC.
  float *parameters = nullptr, *narrow = nullptr;
};

}  // namespace
}  // namespace qdelta::cpu
#endif

#define HWY_TARGET_INCLUDE "kernels/cpu/selective_scan.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// log(1 + exp(v)) without overflow.
HWY_INLINE Vector Softplus(Vector v) {
  const Floats d;
  return hn::Add(hn::Max(v, hn::Zero(d)), hn::Log1p(d, hn::Exp(d, hn::Neg(hn::Abs(v)))));
}

// A of a tile, state by state.
void LoadDecays(const ScanArgs& s, std::int64_t c0, std::int64_t width, float* A) {
  const Floats d;
  for (std::int64_t n = 0; n < s.N; ++n) {
    float* row = A + n * kTile;
    for (std::int64_t i = 0; i < width; ++i) row[i] = s.A_log[(c0 + i) * s.N + n];
    ForVectors(width, [&](std::int64_t i, std::int64_t count)
                          HWY_ATTR { StoreN(hn::Neg(hn::Exp(d, LoadN(row + i, count))), row + i, count); });
  }
}

// The state [N][D] of a tile to [N][kTile] and back.
void LoadState(const ScanArgs& s, const float* state, std::int64_t c0, std::int64_t width, float* h) {
  for (std::int64_t n = 0; n < s.N; ++n) {
    for (std::int64_t i = 0; i < width; ++i) h[n * kTile + i] = state == nullptr ? 0.0F : state[n * s.D + c0 + i];
  }
}
void StoreState(const ScanArgs& s, const float* h, std::int64_t c0, std::int64_t width, float* state) {
  for (std::int64_t n = 0; n < s.N; ++n) std::copy_n(h + n * kTile, width, state + n * s.D + c0);
}

void ScanForward(const ScanArgs& s, const ScanUnit& unit) {
  const Floats d;
  HWY_ALIGN float A[kMaxScanStates * kTile];
  HWY_ALIGN float h[kMaxScanStates * kTile];
  for (std::int64_t c0 = unit.first_channel; c0 < unit.last_channel; c0 += kTile) {
    const std::int64_t width = std::min(kTile, unit.last_channel - c0);
    LoadDecays(s, c0, width, A);
    LoadState(s, unit.h0, c0, width, h);
    for (std::int64_t t = unit.begin; t < unit.end; ++t) {
      if (unit.chunk_states != nullptr && t % kScanChunk == 0) {
        StoreState(s, h, c0, width, unit.chunk_states + t / kScanChunk * s.N * s.D);
      }
      const float* B = s.B.row(t);
      const float* C = s.C.row(t);
      ForVectors(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
        const Vector x = LoadN(s.x.row(t) + c0 + i, count);
        const Vector delta = Softplus(hn::Add(LoadN(s.dt.row(t) + c0 + i, count), LoadN(s.dt_bias + c0 + i, count)));
        const Vector written = hn::Mul(delta, x);
        Vector p = hn::Mul(LoadN(s.skip + c0 + i, count), x);
        for (std::int64_t n = 0; n < s.N; ++n) {
          float* state = h + n * kTile + i;
          const Vector decay = hn::Exp(d, hn::Mul(delta, LoadN(A + n * kTile + i, count)));
          const Vector next = hn::MulAdd(decay, LoadN(state, count), hn::Mul(hn::Set(d, B[n]), written));
          StoreN(next, state, count);
          p = hn::MulAdd(hn::Set(d, C[n]), next, p);
        }
        if (s.z.data != nullptr) {
          const Vector z = LoadN(s.z.row(t) + c0 + i, count);
          p = hn::Mul(p, hn::Mul(z, Sigmoid(z)));
        }
        StoreN(p, unit.y.row(t) + c0 + i, count);
      });
    }
    if (unit.ht != nullptr) StoreState(s, h, c0, width, unit.ht);
  }
}

// Rows [begin, end) of one chunk and one sequence, for a tile: the states before each token, and the decays.
void Replay(const ScanArgs& s, const float* A, float* h, std::int64_t begin, std::int64_t end, std::int64_t c0,
            std::int64_t width, const ScanBackwardScratch& scratch) {
  const Floats d;
  for (std::int64_t t = begin; t < end; ++t) {
    float* before = scratch.before + (t - begin) * s.N * kTile;
    float* decays = scratch.decay + (t - begin) * s.N * kTile;
    const float* B = s.B.row(t);
    ForVectors(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
      const Vector delta = Softplus(hn::Add(LoadN(s.dt.row(t) + c0 + i, count), LoadN(s.dt_bias + c0 + i, count)));
      const Vector written = hn::Mul(delta, LoadN(s.x.row(t) + c0 + i, count));
      for (std::int64_t n = 0; n < s.N; ++n) {
        const std::int64_t at = n * kTile + i;
        const Vector decay = hn::Exp(d, hn::Mul(delta, LoadN(A + at, count)));
        const Vector old = LoadN(h + at, count);
        StoreN(old, before + at, count);
        StoreN(decay, decays + at, count);
        StoreN(hn::MulAdd(decay, old, hn::Mul(hn::Set(d, B[n]), written)), h + at, count);
      }
    });
  }
}

// The same rows backwards. dA, like G, is [N][kTile].
void Reverse(const ScanArgs& s, const Gradients& g, const float* A, float* G, float* dA, std::int64_t begin,
             std::int64_t end, std::int64_t c0, std::int64_t width, const ScanBackwardScratch& scratch) {
  const Floats d;
  const Vector one = hn::Set(d, 1.0F);
  float* dskip = g.parameters + s.N * s.D + c0;
  float* ddt_bias = dskip + s.D;
  for (std::int64_t t = end; t-- > begin;) {
    const float* before = scratch.before + (t - begin) * s.N * kTile;
    const float* decays = scratch.decay + (t - begin) * s.N * kTile;
    float* sum_B = scratch.sums + (t - begin) * 2 * s.N * kTile;
    float* sum_C = sum_B + s.N * kTile;
    const float* B = s.B.row(t);
    const float* C = s.C.row(t);
    ForVectors(width, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
      const Vector x = LoadN(s.x.row(t) + c0 + i, count);
      const Vector shifted = hn::Add(LoadN(s.dt.row(t) + c0 + i, count), LoadN(s.dt_bias + c0 + i, count));
      const Vector delta = Softplus(shifted);
      const Vector written = hn::Mul(delta, x);
      const Vector skip = LoadN(s.skip + c0 + i, count);
      const Vector dy = LoadN(g.dy.row(t) + c0 + i, count);
      Vector z = one;
      Vector gate = one;
      Vector dp = dy;
      if (s.z.data != nullptr) {
        z = LoadN(s.z.row(t) + c0 + i, count);
        gate = Sigmoid(z);
        dp = hn::Mul(dy, hn::Mul(z, gate));
      }
      Vector p = hn::Mul(skip, x);
      Vector ddelta = hn::Zero(d);
      Vector through_input = hn::Zero(d);  // sum_n G[n] B[n]
      for (std::int64_t n = 0; n < s.N; ++n) {
        const std::int64_t at = n * kTile + i;
        const Vector b = hn::Set(d, B[n]);
        const Vector c = hn::Set(d, C[n]);
        const Vector decay = LoadN(decays + at, count);
        const Vector old = LoadN(before + at, count);
        const Vector state = hn::MulAdd(decay, old, hn::Mul(b, written));
        p = hn::MulAdd(c, state, p);
        StoreN(hn::MulAdd(dp, state, LoadN(sum_C + at, count)), sum_C + at, count);
        const Vector G_now = hn::MulAdd(c, dp, LoadN(G + at, count));
        StoreN(hn::MulAdd(G_now, written, LoadN(sum_B + at, count)), sum_B + at, count);
        through_input = hn::MulAdd(G_now, b, through_input);
        const Vector earlier = hn::Mul(G_now, decay);
        StoreN(earlier, G + at, count);
        const Vector of_exponent = hn::Mul(hn::Mul(earlier, old), LoadN(A + at, count));
        ddelta = hn::Add(ddelta, of_exponent);
        StoreN(hn::MulAdd(of_exponent, delta, LoadN(dA + at, count)), dA + at, count);
      }
      StoreN(hn::MulAdd(delta, through_input, hn::Mul(skip, dp)), g.dx.row(t) + c0 + i, count);
      const Vector ddt = hn::Mul(hn::MulAdd(x, through_input, ddelta), Sigmoid(shifted));
      StoreN(ddt, g.ddt.row(t) + c0 + i, count);
      StoreN(hn::MulAdd(dp, x, LoadN(dskip + i, count)), dskip + i, count);
      StoreN(hn::Add(ddt, LoadN(ddt_bias + i, count)), ddt_bias + i, count);
      if (s.z.data != nullptr) {
        const Vector slope = hn::Mul(gate, hn::MulAdd(z, hn::Sub(one, gate), one));
        StoreN(hn::Mul(hn::Mul(dy, p), slope), g.dz.row(t) + c0 + i, count);
      }
    });
  }
}

// One sequence, rows [begin, end), for the channels of a group.
void ScanBackward(const ScanArgs& s, const Gradients& g, std::int64_t begin, std::int64_t end,
                  std::int64_t first_channel, std::int64_t last_channel, const float* h0,
                  const ScanBackwardScratch& scratch) {
  HWY_ALIGN float A[kMaxScanStates * kTile];
  HWY_ALIGN float h[kMaxScanStates * kTile];
  HWY_ALIGN float dA[kMaxScanStates * kTile];
  const std::int64_t tile_size = s.N * kTile;
  const auto for_tiles = [&](const auto& body) {
    for (std::int64_t c0 = first_channel; c0 < last_channel; c0 += kTile) {
      body(c0, std::min(kTile, last_channel - c0), scratch.G + (c0 - first_channel) / kTile * tile_size);
    }
  };
  for_tiles([&](std::int64_t c0, std::int64_t width, float* G) { LoadState(s, g.d_ht, c0, width, G); });
  for (std::int64_t to = end; to > begin;) {
    const std::int64_t from = std::max(begin, (to - 1) / kScanChunk * kScanChunk);
    const float* entry = from == begin ? h0 : g.chunk_states + from / kScanChunk * s.N * s.D;
    std::fill_n(scratch.sums, (to - from) * 2 * tile_size, 0.0F);
    for_tiles([&](std::int64_t c0, std::int64_t width, float* G) {
      LoadDecays(s, c0, width, A);
      LoadState(s, entry, c0, width, h);
      std::fill_n(dA, tile_size, 0.0F);
      Replay(s, A, h, from, to, c0, width, scratch);
      Reverse(s, g, A, G, dA, from, to, c0, width, scratch);
      for (std::int64_t n = 0; n < s.N; ++n) {
        for (std::int64_t i = 0; i < width; ++i) g.parameters[n * s.D + c0 + i] += dA[n * kTile + i];
      }
    });
    for (std::int64_t k = 0; k < (to - from) * 2 * s.N; ++k) {
      float sum = 0;
      for (std::int64_t i = 0; i < kTile; ++i) sum += scratch.sums[k * kTile + i];
      g.narrow[from * 2 * s.N + k] = sum;
    }
    to = from;
  }
  if (g.dh0 == nullptr) return;
  for_tiles([&](std::int64_t c0, std::int64_t width, float* G) { StoreState(s, G, c0, width, g.dh0); });
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(ScanForward);
HWY_EXPORT(ScanBackward);

namespace {

Input input(const ConstTensorView& view) { return {floats(view), view.step(0)}; }
Output output(const TensorView& view) { return {floats(view), view.step(0)}; }

template <class Inputs>
ScanArgs scan_args(const Inputs& in) {
  return {.x = input(in.x),
          .dt = input(in.dt),
          .B = input(in.B),
          .C = input(in.C),
          .z = input(in.z),
          .A_log = floats(in.A_log),
          .skip = floats(in.skip),
          .dt_bias = floats(in.dt_bias),
          .D = in.x.extent(1),
          .N = in.A_log.extent(1)};
}

// State n of a tensor of states; null where there is none.
template <class View>
auto* state_of(const View& view, std::int64_t n) {
  return view ? floats(view) + n * view.step(0) : nullptr;
}

// Sequences whose sums over tokens are taken together: about as many tokens in each span. Span s is sequences
// [first[s], first[s + 1]).
struct Spans {
  std::int64_t count = 0;
  // One span more than kMostSpans where sequences without tokens come last.
  std::array<std::int64_t, kMostSpans + 2> first{};

  explicit Spans(std::span<const std::int64_t> offsets) {
    const auto sequences = static_cast<std::int64_t>(offsets.size()) - 1;
    const std::int64_t tokens = std::max<std::int64_t>(1, ceil_div(offsets.back(), kMostSpans));
    for (std::int64_t n = 1; n < sequences; ++n) {
      if (offsets[static_cast<std::size_t>(n)] - offsets[static_cast<std::size_t>(begin_of(count))] >= tokens)
        first[static_cast<std::size_t>(++count)] = n;
    }
    first[static_cast<std::size_t>(++count)] = sequences;
  }
  [[nodiscard]] std::int64_t begin_of(std::int64_t span) const { return first[static_cast<std::size_t>(span)]; }
  [[nodiscard]] std::int64_t end_of(std::int64_t span) const { return begin_of(span + 1); }
};

// Where the backward's scratch space lies.
struct ScanBackwardMemory {
  float *parameters, *narrow, *before, *decay, *sums, *G;
  std::int64_t before_size, sums_size, G_size, parameters_size, narrow_size;

  ScanBackwardMemory(const SelectiveScanInputs& in, std::int64_t spans, int threads, BumpAllocator& memory) {
    const std::int64_t D = in.x.extent(1);
    const std::int64_t N = in.A_log.extent(1);
    parameters_size = (N + 2) * D;
    narrow_size = in.x.extent(0) * 2 * N;
    before_size = kScanChunk * N * kTile;
    sums_size = 2 * before_size;
    G_size = N * kChannelGroup;
    parameters = memory.take<float>(spans * parameters_size);
    narrow = memory.take<float>(ceil_div(D, kChannelGroup) * narrow_size);
    before = memory.take<float>(threads * before_size);
    decay = memory.take<float>(threads * before_size);
    sums = memory.take<float>(threads * sums_size);
    G = memory.take<float>(threads * G_size);
  }
  [[nodiscard]] ScanBackwardScratch of(int worker) const {
    return {before + worker * before_size, decay + worker * before_size, sums + worker * sums_size,
            G + worker * G_size};
  }
};

// dB and dC: the groups' sums, in order.
void add_groups(const Device& device, const SelectiveScanBackward& args, const ScanBackwardMemory& memory) {
  const std::int64_t N = args.in.A_log.extent(1);
  const std::int64_t groups = ceil_div(args.in.x.extent(1), kChannelGroup);
  constexpr std::int64_t kRows = 64;
  const std::int64_t rows = args.in.x.extent(0);
  parallel_for(ceil_div(rows, kRows), thread_count(device.threads), [&](std::int64_t block, int /*worker*/) {
    for (std::int64_t t = block * kRows; t < std::min(rows, (block + 1) * kRows); ++t) {
      float* dB = floats(args.dB) + t * args.dB.step(0);
      float* dC = floats(args.dC) + t * args.dC.step(0);
      for (std::int64_t n = 0; n < 2 * N; ++n) {
        float sum = 0;
        for (std::int64_t k = 0; k < groups; ++k) sum += memory.narrow[k * memory.narrow_size + t * 2 * N + n];
        (n < N ? dB[n] : dC[n - N]) = sum;
      }
    }
  });
}

// dA_log, dskip and ddt_bias: the spans' sums, in order.
void add_spans(const SelectiveScanBackward& args, const ScanBackwardMemory& memory, std::int64_t spans) {
  const std::int64_t D = args.in.x.extent(1);
  const std::int64_t N = args.in.A_log.extent(1);
  for (std::int64_t span = 0; span < spans; ++span) {
    const float* of_span = memory.parameters + span * memory.parameters_size;
    for (std::int64_t d = 0; d < D; ++d) {
      for (std::int64_t n = 0; n < N; ++n) floats(args.dA_log)[d * N + n] += of_span[n * D + d];
      floats(args.dskip)[d] += of_span[N * D + d];
      floats(args.ddt_bias)[d] += of_span[(N + 1) * D + d];
    }
  }
}

}  // namespace

void selective_scan_forward(const Device& device, const SelectiveScanForward& args) {
  const ScanArgs scan = scan_args(args.in);
  const std::int64_t groups = ceil_div(scan.D, kChannelGroup);
  const auto sequences = static_cast<std::int64_t>(args.in.offsets.size()) - 1;
  const auto run = HWY_DYNAMIC_DISPATCH(ScanForward);
  parallel_for(sequences * groups, thread_count(device.threads), [&](std::int64_t index, int /*worker*/) {
    const std::int64_t n = index / groups;
    const std::int64_t first = index % groups * kChannelGroup;
    run(scan, {.y = output(args.y),
               .h0 = state_of(args.in.h0, n),
               .ht = state_of(args.ht, n),
               .chunk_states = state_of(args.chunk_states, 0),
               .begin = args.in.offsets[static_cast<std::size_t>(n)],
               .end = args.in.offsets[static_cast<std::size_t>(n) + 1],
               .first_channel = first,
               .last_channel = std::min(scan.D, first + kChannelGroup)});
  });
}

void selective_scan_step(const Device& device, const SelectiveScanStep& args) {
  const ScanArgs scan = scan_args(args);
  const std::int64_t groups = ceil_div(scan.D, kChannelGroup);
  const auto* index = reinterpret_cast<const std::int64_t*>(args.index.data);
  const auto run = HWY_DYNAMIC_DISPATCH(ScanForward);
  parallel_for(args.x.extent(0) * groups, thread_count(device.threads), [&](std::int64_t unit, int /*worker*/) {
    const std::int64_t row = unit / groups;
    const std::int64_t first = unit % groups * kChannelGroup;
    float* state = state_of(args.states, index == nullptr ? row : index[row]);
    run(scan, {.y = output(args.y),
               .h0 = state,
               .ht = state,
               .begin = row,
               .end = row + 1,
               .first_channel = first,
               .last_channel = std::min(scan.D, first + kChannelGroup)});
  });
}

std::size_t selective_scan_backward_workspace(const Device& device, const SelectiveScanInputs& in) {
  BumpAllocator counter(nullptr);
  (void)ScanBackwardMemory(in, Spans(in.offsets).count, thread_count(device.threads), counter);
  return counter.used();
}

void selective_scan_backward(const Device& device, const SelectiveScanBackward& args, std::span<std::byte> workspace) {
  const ScanArgs scan = scan_args(args.in);
  const std::int64_t groups = ceil_div(scan.D, kChannelGroup);
  const Spans spans(args.in.offsets);
  const int threads = thread_count(device.threads);
  BumpAllocator allocator(workspace.data());
  const ScanBackwardMemory memory(args.in, spans.count, threads, allocator);
  std::fill_n(memory.parameters, spans.count * memory.parameters_size, 0.0F);
  const auto run = HWY_DYNAMIC_DISPATCH(ScanBackward);
  parallel_for(spans.count * groups, threads, [&](std::int64_t index, int worker) {
    const std::int64_t span = index / groups;
    const std::int64_t group = index % groups;
    const std::int64_t first = group * kChannelGroup;
    for (std::int64_t n = spans.begin_of(span); n < spans.end_of(span); ++n) {
      const Gradients gradients{.dy = input(args.dy),
                                .dx = output(args.dx),
                                .ddt = output(args.ddt),
                                .dz = output(args.dz),
                                .d_ht = state_of(args.d_ht, n),
                                .chunk_states = state_of(args.chunk_states, 0),
                                .dh0 = state_of(args.dh0, n),
                                .parameters = memory.parameters + span * memory.parameters_size,
                                .narrow = memory.narrow + group * memory.narrow_size};
      run(scan, gradients, args.in.offsets[static_cast<std::size_t>(n)],
          args.in.offsets[static_cast<std::size_t>(n) + 1], first, std::min(scan.D, first + kChannelGroup),
          state_of(args.in.h0, n), memory.of(worker));
    }
  });
  add_groups(device, args, memory);
  add_spans(args, memory, spans.count);
}

}  // namespace qdelta::cpu
#endif
