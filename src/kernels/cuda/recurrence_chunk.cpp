// Host side of the chunkwise recurrence: checks, the layout of the workspace, and the launches.
#include "kernels/cuda/recurrence_chunk.h"

#include <algorithm>
#include <limits>

#include "core/memory.h"
#include "kernels/cuda/recurrence_chunk_args.h"
#include "kernels/cuda/upload_offsets.h"
#include "kernels/lengths_on_device.h"
#include "kernels/overlapped_launches.h"
#include "kernels/recurrence_check.h"
#include "kernels/recurrence_layout.h"

namespace qdelta::cuda {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Checks, beyond those of all forms.

void check_contiguous(std::string_view name, const ConstTensorView& view) {
  if (!view) return;
  const int last = view.shape.rank - 1;
  require(view.step(last) == 1 || view.extent(last) <= 1,
          "the last axis of {} has stride {}; on the GPU it must be contiguous", name, view.step(last));
}

void check_chunk_states(const ConstTensorView& states, const RecurrenceLayout& at) {
  if (!states) return;
  const Shape expected{at.total_chunks, at.HV, at.K, at.V};
  require(states.shape == expected, "chunk_states has shape {}, expected [chunks, HV, K, V] = {}", states.shape.text(),
          expected.text());
  require(states.dtype == DType::f32 || states.dtype == DType::bf16, "chunk_states is {}, expected F32 or BF16",
          name_of(states.dtype));
  check_contiguous("chunk_states", states);
}

void check_inputs(const RecurrenceInputs& in, const Execution& run, const RecurrenceLayout& at) {
  require(run.form == Form::chunk || run.form == Form::automatic, "on the GPU there is the chunk form, and the step");
  require(run.chunk == 0 || run.chunk == kChunk, "chunks of {} tokens; on the GPU they have {}", run.chunk, kChunk);
  require(at.K <= kMaxKeyDim, "K is {}; on the GPU it is at most {}", at.K, kMaxKeyDim);
  constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();
  const std::int64_t blocks = std::max(at.total_chunks, at.N) * at.HV;
  require(blocks <= kMaxBlocks / std::max<std::int64_t>(1, ceil_div(at.V, kBlockV)),
          "{} chunks of {} heads are too many for one launch", at.total_chunks, at.HV);
  check_contiguous("q", in.q);
  check_contiguous("k", in.k);
  check_contiguous("v", in.v);
  check_contiguous("h0", in.h0);
  require(run.segment_tokens >= 0 && run.segment_tokens % kChunk == 0, "segments of {} tokens; chunks have {}",
          run.segment_tokens, kChunk);
  require(run.segments == 0 || run.segment_tokens == 0, "both the number of segments and their length are given");
}

// `saved`, where a call has it, is large enough.
void check_saved(std::span<const std::byte> saved, Rule rule, const RecurrenceLayout& at) {
  if (saved.empty()) return;
  const std::size_t needed = recurrence_chunk_saved_bytes(rule, at.total_chunks * at.HV, at.V);
  require(saved.size() >= needed, "saved has {} bytes, {} are needed", saved.size(), needed);
  require(reinterpret_cast<std::uintptr_t>(saved.data()) % kAlignment == 0,
          "saved does not start at a multiple of {} bytes", kAlignment);
}

void check_call(const RecurrenceForward& args) {
  const RecurrenceLayout at(args.in, kChunk);
  RecurrenceForward common = args;
  common.chunk_states = {};  // may be bf16 here
  check(common);
  check_inputs(args.in, args.run, at);
  check_chunk_states(args.chunk_states, at);
  check_contiguous("o", args.o);
  check_contiguous("ht", args.ht);
  check_saved(args.saved, args.in.rule, at);
}

void check_call(const RecurrenceBackward& args) {
  const RecurrenceLayout at(args.in, kChunk);
  RecurrenceBackward common = args;
  common.chunk_states = {};
  check(common);
  check_inputs(args.in, args.run, at);
  require(args.run.segment_tokens == 0, "only a forward has segments of a given length");
  check_chunk_states(args.chunk_states, at);
  check_contiguous("do", args.d_o);
  check_contiguous("dht", args.d_ht);
  check_contiguous("dq", args.dq);
  check_contiguous("dk", args.dk);
  check_contiguous("dv", args.dv);
  check_contiguous("dh0", args.dh0);
  check_saved(args.saved, args.in.rule, at);
}

// ---------------------------------------------------------------------------------------------------------------------
// Views as arguments of the kernels.

// Whether every row starts at a multiple of 16 bytes and is a whole number of them, and all are apart: the copy engine
// is not asked for tensors of which rows are repeated. A stride does not matter along an axis of one.
template <class Byte>
bool is_aligned16(const BasicView<Byte>& view, int outer_axes) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) return false;
  for (int axis = 0; axis < outer_axes; ++axis) {
    if (view.extent(axis) > 1 && (view.step(axis) == 0 || view.step(axis) * size % 16 != 0)) return false;
  }
  return view.shape.rank == outer_axes || view.extent(outer_axes) * size % 16 == 0;
}

template <class Byte>
TokenTensor<Byte> token_tensor(const BasicView<Byte>& view) {
  if (!view) return {};
  return {.data = view.data,
          .batch_stride = view.step(0),
          .token_stride = view.step(1),
          .head_stride = view.step(2),
          .bf16 = view.dtype == DType::bf16,
          .aligned16 = view.shape.rank == 4 && is_aligned16(view, 3)};
}
template <class Byte>
StateTensor<Byte> state_tensor(const BasicView<Byte>& view) {
  if (!view) return {};
  return {.data = view.data,
          .index_stride = view.step(0),
          .head_stride = view.step(1),
          .key_stride = view.step(2),
          .columns = static_cast<int>(view.extent(3)),
          .bf16 = view.dtype == DType::bf16,
          .aligned16 = is_aligned16(view, 3)};
}
StatesIn read_only(const StatesOut& states) {
  return {.data = states.data,
          .index_stride = states.index_stride,
          .head_stride = states.head_stride,
          .key_stride = states.key_stride,
          .columns = states.columns,
          .bf16 = states.bf16,
          .aligned16 = states.aligned16};
}

// ---------------------------------------------------------------------------------------------------------------------
// Segments (recurrence_chunk_segments.cu).

// What the scans of a call take, in chunks that an SM's blocks do one after the other, if segments have so many chunks.
// Splitting costs a scan for their maps, and the launches that combine these.
class ScanCost {
 public:
  // `has_edges`: there are states on entry to the sequences, whose first segments then need an M as well.
  ScanCost(const RecurrenceLayout& at, const Dims& dims, bool bf16, bool backward, bool has_edges, int sm_count)
      : at_(at), backward_(backward), without_M_(has_edges ? at.N : 2 * at.N) {
    const bool pairs = bf16 && dims.key_dim <= 128;  // blocks of two warpgroups, CopyEnginePipeline
    const std::int64_t width = pairs ? 2 : 1;
    places_ = std::int64_t{sm_count} * (bf16 && !pairs ? 2 : 1);
    of_N_ = at.HV * ceil_div(std::int64_t{dims.column_blocks}, width);
    of_M_ = at.HV * ceil_div(ceil_div(at.K, kBlockV), width);
  }
  [[nodiscard]] std::int64_t whole(std::int64_t longest) const { return launch(at_.N * of_N_, longest); }
  [[nodiscard]] std::int64_t split(std::int64_t chunks, std::int64_t longest) const {
    const std::int64_t segments = count(chunks);
    const std::int64_t M = std::max<std::int64_t>(0, segments - without_M_) * of_M_;
    const std::int64_t N = (segments - at_.N) * of_N_;
    const std::int64_t of_maps = backward_ ? launch(M, chunks) + launch(N, chunks) : launch(M + N, chunks);
    constexpr std::int64_t kLaunches = 8;
    return launch(segments * of_N_, chunks) + of_maps + ceil_div(longest, chunks) + kLaunches;
  }
  // The most segments for which the scan has so many waves of blocks, and for which that for the maps has.
  [[nodiscard]] std::int64_t segments_of_scan(std::int64_t waves) const { return waves * places_ / of_N_; }
  [[nodiscard]] std::int64_t segments_of_maps(std::int64_t waves) const {
    return (waves * places_ + at_.N * of_N_ + without_M_ * of_M_) / (of_N_ + of_M_);
  }
  // The fewest chunks of a segment for which there are at most so many segments.
  [[nodiscard]] std::int64_t chunks_for(std::int64_t segments, std::int64_t longest) const {
    if (segments <= at_.N) return longest;
    std::int64_t chunks = std::max<std::int64_t>(1, ceil_div(at_.total_chunks, segments));
    while (chunks < longest && count(chunks) > segments) chunks += ceil_div(chunks, std::int64_t{16});
    return chunks;
  }

 private:
  [[nodiscard]] std::int64_t count(std::int64_t chunks) const {
    if (at_.cu_seqlens.empty()) return at_.N * ceil_div(at_.chunks(0), chunks);
    std::int64_t segments = 0;
    for (std::int64_t n = 0; n < at_.N; ++n) segments += std::max<std::int64_t>(1, ceil_div(at_.chunks(n), chunks));
    return segments;
  }
  // Of packed sequences blocks differ, and those that begin late are short as a rule.
  [[nodiscard]] std::int64_t launch(std::int64_t blocks, std::int64_t longest) const {
    if (at_.cu_seqlens.empty() || blocks <= places_) return ceil_div(blocks, places_) * longest;
    return blocks * std::min(longest, at_.total_chunks / at_.N) / places_ + longest;
  }

  const RecurrenceLayout& at_;
  bool backward_;
  std::int64_t without_M_;             // segments
  std::int64_t places_, of_N_, of_M_;  // blocks at a time, and of a segment
};

// Chunks of a segment: all of the longest sequence, or fewer where that takes less time.
std::int64_t chunks_per_segment(const RecurrenceLayout& at, const Dims& dims, bool bf16, bool backward, bool has_edges,
                                int sm_count, const Execution& run) {
  if (run.segment_tokens > 0) return run.segment_tokens / kChunk;
  std::int64_t longest = 1;
  for (std::int64_t n = 0; n < (at.cu_seqlens.empty() ? std::min<std::int64_t>(at.N, 1) : at.N); ++n)
    longest = std::max(longest, at.chunks(n));
  if (run.segments > 0) return ceil_div(longest, std::int64_t{run.segments});
  constexpr std::int64_t kFewest = 8, kMostWaves = 6;
  const ScanCost cost(at, dims, bf16, backward, has_edges, sm_count);
  std::int64_t best = longest;
  // Maps need memory: a tenth is the least to be gained.
  std::int64_t least = at.N == 0 ? 0 : cost.whole(longest) * 9 / 10;
  for (std::int64_t waves = 1; waves <= kMostWaves && least > 0; ++waves) {
    for (const std::int64_t segments : {cost.segments_of_scan(waves), cost.segments_of_maps(waves)}) {
      const std::int64_t chunks = cost.chunks_for(segments, longest);
      if (chunks < kFewest || chunks >= longest) continue;
      if (const std::int64_t time = cost.split(chunks, longest); time < least) best = chunks, least = time;
    }
  }
  return best;
}

// ---------------------------------------------------------------------------------------------------------------------
// What forward and backward have in common.

struct ChunkLaunch {
  RecurrenceLayout at;
  Dims dims;
  Chunks chunks;
  Segments segments;
  SharedJobs shared;
  PreparedChunks prepared;
  std::byte* v_new = nullptr;        // V', where it is saved for the backward
  float *M = nullptr, *N = nullptr;  // of the segments, where there are several of a sequence; N or dN
  float* segment_states = nullptr;   // on entry to them, or the gradients on exit
  bool bf16;                         // the operand type
  std::int64_t slots;
  const RuleTraits& traits;

  // `saved` has the matrices and factors, and V'; null: these are in the workspace, and V' is not kept.
  ChunkLaunch(const Context& context, const RecurrenceInputs& in, const Execution& run, bool bf16_operands,
              bool backward, BumpAllocator& memory, std::byte* saved)
      : at(in, kChunk), bf16(bf16_operands), slots(at.total_chunks * at.HV), traits(traits_of(in.rule)) {
    dims.heads = static_cast<int>(at.H);
    dims.value_heads = static_cast<int>(at.HV);
    dims.group_size = static_cast<int>(at.HV / at.H);
    dims.key_dim = static_cast<int>(at.K);
    dims.value_dim = static_cast<int>(at.V);
    dims.column_blocks = column_blocks(at.V);
    chunks.sequences = at.N;
    chunks.tokens = at.T;
    chunks.total = at.total_chunks;
    if (!in.cu_seqlens.empty()) {
      const LengthsOnDevice* const lengths = LengthsOnDevice::current();
      require(lengths == nullptr || at.N == 1, "{} sequences whose lengths only the device knows", at.N);
      chunks.cu_seqlens = lengths != nullptr ? lengths->offsets().data() : memory.take<std::int64_t>(at.N + 1);
    }
    if (needs_tables()) {
      chunks.first_chunk = memory.take<std::int64_t>(at.N + 1);
      chunks.sequence = memory.take<std::int32_t>(at.total_chunks);
    } else {
      chunks.per_sequence = in.cu_seqlens.empty() ? ceil_div(at.T, kChunk) : at.total_chunks;
    }
    segments.fixed = run.segment_tokens > 0;
    segments.chunks = chunks_per_segment(at, dims, bf16, backward, static_cast<bool>(in.h0), context.sm_count(), run);
    allocate_segments(memory);
    require(LengthsOnDevice::current() == nullptr || !segments.fixed || !is_split(),
            "a sequence whose length only the device knows has room for whole segments");
    share_jobs(context.sm_count(), memory);
    BumpAllocator elsewhere(saved);
    prepared = allocate_prepared(traits, slots, saved == nullptr ? memory : elsewhere);
    if (saved != nullptr) v_new = allocate_rows(slots, dims.column_blocks, elsewhere);
  }

  [[nodiscard]] bool is_split() const { return segments.total > at.N; }
  // A single packed sequence begins with the first chunk.
  [[nodiscard]] bool needs_tables() const { return !at.cu_seqlens.empty() && at.N > 1; }

  // As build_chunk_tables counts them.
  [[nodiscard]] std::int64_t segments_of(std::int64_t n) const {
    if (segments.fixed) return at.length(n) / (segments.chunks * kChunk) + 1;
    return std::max<std::int64_t>(1, ceil_div(at.chunks(n), segments.chunks));
  }
  void allocate_segments(BumpAllocator& memory) {
    if (needs_tables()) {
      for (std::int64_t n = 0; n < at.N; ++n) segments.total += segments_of(n);
      segments.first_segment = memory.take<std::int64_t>(at.N + 1);
      segments.first_chunk = memory.take<std::int64_t>(segments.total + 1);
      segments.sequence = memory.take<std::int32_t>(segments.total);
    } else {
      segments.per_sequence = at.N == 0 ? 0 : segments_of(0);
      segments.total = at.N * segments.per_sequence;
    }
    if (!is_split()) return;
    const std::int64_t maps = segments.total * at.HV;
    M = memory.take<float>(maps * at.K * at.K);
    N = memory.take<float>(maps * at.K * at.V);
    segment_states = memory.take<float>(maps * at.K * at.V);
  }

  // Of equal sequences that are not split, where there are more jobs than teams: else some would have one job more than
  // others. A block of the scans has two blocks of columns (CopyEnginePipeline).
  void share_jobs(int sm_count, BumpAllocator& memory) {
    const int team = dims.column_blocks / 2;
    if (!bf16 || at.K > 128 || chunks.cu_seqlens != nullptr || is_split() || dims.column_blocks % 2 != 0) return;
    const std::int64_t jobs = at.N * at.HV;
    const int teams = sm_count / team;
    if (teams == 0 || jobs <= teams || jobs % teams == 0 ||
        jobs * chunks.per_sequence > std::numeric_limits<int>::max())
      return;
    shared.jobs = static_cast<int>(jobs);
    shared.most_blocks = sm_count;
    shared.chunks_per_team =
        static_cast<int>(std::max(chunks.per_sequence, ceil_div(jobs * chunks.per_sequence, std::int64_t{teams})));
    shared.states = memory.take<float>(std::int64_t{sm_count} * padded_key_dim(dims.key_dim) * 3 * kBlockV);
    shared.ready = memory.take<std::uint32_t>(std::int64_t{sm_count} * 16);
  }

  // Split bf16 takes as much memory as float32.
  static PreparedChunks allocate_prepared(const RuleTraits& traits, std::int64_t slots, BumpAllocator& memory) {
    PreparedChunks prepared;
    prepared.A_qkT = memory.take<float>(slots * kChunkMatrix);
    if (traits.erases) prepared.T = memory.take<float>(slots * kChunkMatrix);
    prepared.factors = memory.take<float>(slots * kFactors * kChunk);
    return prepared;
  }

  static int column_blocks(std::int64_t V) { return static_cast<int>(std::max<std::int64_t>(1, ceil_div(V, kBlockV))); }
  // V' or dR: [parts][token][V] of the operand type for every chunk and head, V padded to a multiple of kBlockV.
  // Likewise.
  static std::byte* allocate_rows(std::int64_t slots, int column_blocks, BumpAllocator& memory) {
    return reinterpret_cast<std::byte*>(memory.take<float>(slots * kChunk * column_blocks * kBlockV));
  }
  // [chunk, head, K, V] of the operand type, V padded to a multiple of kBlockV.
  [[nodiscard]] StatesOut operand_states(BumpAllocator& memory) const {
    const std::int64_t columns = std::int64_t{dims.column_blocks} * kBlockV;
    return {.data = memory.take<std::byte>(slots * at.K * columns * (bf16 ? 2 : 4)),
            .index_stride = at.HV * at.K * columns,
            .head_stride = at.K * columns,
            .key_stride = columns,
            .columns = static_cast<int>(columns),
            .bf16 = bf16,
            .aligned16 = true};
  }
  void build_chunk_tables(const Context& context, const RecurrenceInputs& in) const {
    if (chunks.cu_seqlens == nullptr) return;
    if (LengthsOnDevice::current() == nullptr)
      upload_offsets(context, const_cast<std::int64_t*>(chunks.cu_seqlens), in.cu_seqlens);
    if (needs_tables()) launch_build_chunk_tables(context, chunks, segments);
  }
  void prepare(const Context& context, const RecurrenceInputs& in) const {
    if (slots == 0) return;
    // The offsets of a single sequence are read before the kernel ahead is waited for, which then must not store them.
    const bool stored_just_now =
        chunks.cu_seqlens != nullptr && !needs_tables() && LengthsOnDevice::current() == nullptr;
    const OverlappedLaunches overlapped(OverlappedLaunches::on() && !stored_just_now);
    launch_prepare(context,
                   {.dims = dims,
                    .chunks = chunks,
                    .rule = in.rule,
                    .erases = traits.erases,
                    .qk_l2norm = in.qk_l2norm,
                    .scale = in.scale,
                    .batch = at.B,
                    .tokens = at.T,
                    .q = token_tensor(in.q),
                    .k = token_tensor(in.k),
                    .g = token_tensor(in.g),
                    .beta = token_tensor(in.beta),
                    .lambda = token_tensor(in.lambda),
                    .out = prepared},
                   bf16);
  }

  // The forward scan without outputs.
  [[nodiscard]] ForwardScanArgs forward_scan(const RecurrenceInputs& in) const {
    auto args = scan_args<ForwardScanArgs>(in);
    args.v = token_tensor(in.v);
    args.initial_states = state_tensor(in.h0);
    return args;
  }

  // The backward scan without states and outputs.
  [[nodiscard]] BackwardScanArgs backward_scan(const RecurrenceInputs& in, const ConstTensorView& d_o) const {
    auto args = scan_args<BackwardScanArgs>(in);
    args.d_o = token_tensor(d_o);
    return args;
  }

  // Points a forward scan without outputs to the states on entry to the segments, which it computes first.
  void split_forward(const Context& context, ForwardScanArgs& scan) const {
    if (!is_split()) return;
    scan_maps(context, scan, {.M = M, .N = N, .first = scan.initial_states.data != nullptr});
    combine(context, scan.initial_states, false);
    scan.initial_states = states_of_segments();
  }
  // Points a backward scan to the gradients on exit from the segments, likewise. `forward` is a scan without outputs.
  void split_backward(const Context& context, const ForwardScanArgs& forward, BackwardScanArgs& scan) const {
    if (!is_split()) return;
    scan_maps(context, forward, {.M = M, .last = scan.d_final_states.data != nullptr});
    BackwardScanArgs only_dN = scan;
    only_dN.segment_dN = N;
    launch_backward_scan(context, only_dN, bf16);
    combine(context, scan.d_final_states, true);
    scan.d_final_states = states_of_segments();
  }

  // Of all segments, in memory that is taken here where the sequences are not split.
  [[nodiscard]] MapsOfSegments maps_of_segments(BumpAllocator& memory) const {
    MapsOfSegments maps{.first = {0}, .M = M, .N = N};
    for (std::int64_t n = 0; n < at.N; ++n) {
      maps.first.push_back(maps.first.back() + segments_of(n));
    }
    if (is_split()) return maps;
    maps.M = memory.take<float>(at.N * at.HV * at.K * at.K);
    maps.N = memory.take<float>(at.N * at.HV * at.K * at.V);
    return maps;
  }
  void scan_maps(const Context& context, ForwardScanArgs scan, SegmentMaps maps) const {
    maps.n_blocks = maps.N == nullptr ? 0 : dims.column_blocks;
    scan.dims.column_blocks = maps.n_blocks + static_cast<int>(ceil_div(at.K, kBlockV));
    scan.maps = maps;
    scan.initial_states = {};
    scan.shared = {};  // its memory is for the columns of the values alone
    launch_forward_scan(context, scan, bf16);
  }

 private:
  // What the scans have in common.
  template <class Args>
  [[nodiscard]] Args scan_args(const RecurrenceInputs& in) const {
    Args args{};
    args.dims = dims;
    args.chunks = chunks;
    args.segments = segments;
    args.shared = shared;
    args.erases = traits.erases;
    args.batch = at.B;
    args.tokens = at.T;
    args.q = token_tensor(in.q);
    args.k = token_tensor(in.k);
    args.prepared = prepared;
    return args;
  }
  void combine(const Context& context, const StatesIn& start, bool backward) const {
    launch_combine_segments(context, {.dims = dims,
                                      .sequences = at.N,
                                      .segments = segments,
                                      .backward = backward,
                                      .start = start,
                                      .M = M,
                                      .N = N,
                                      .states = segment_states});
  }
  [[nodiscard]] StatesIn states_of_segments() const {
    return {.data = reinterpret_cast<const std::byte*>(segment_states),
            .index_stride = at.HV * at.K * at.V,
            .head_stride = at.K * at.V,
            .key_stride = at.V,
            .columns = static_cast<int>(at.V)};
  }
};

// Without L2 norm rows may have any length, and what they write may grow and cancel: bf16 is not precise enough.
bool bf16_operands(const RecurrenceInputs& in) {
  return in.qk_l2norm && in.q.dtype == DType::bf16 && in.k.dtype == DType::bf16 && in.v.dtype == DType::bf16;
}

// Null: nothing is to be saved.
std::byte* saved_memory(const RecurrenceForward& args) { return args.saved.empty() ? nullptr : args.saved.data(); }

struct ForwardLaunch {
  BumpAllocator memory;
  ChunkLaunch launch;

  // In memory from `base` on; null: to count how much of it is needed.
  ForwardLaunch(const Context& context, const RecurrenceForward& args, std::byte* base)
      : memory(base), launch(context, args.in, args.run, bf16_operands(args.in), false, memory, saved_memory(args)) {}
};

// ---------------------------------------------------------------------------------------------------------------------
// What the backward needs besides.

struct BackwardLaunch {
  static bool bf16_backward(const RecurrenceBackward& args) {
    return bf16_operands(args.in) && args.d_o.dtype == DType::bf16;
  }
  // What the forward saved, where it worked with operands of the same type. It is only read.
  static std::byte* reusable(const RecurrenceBackward& args) {
    const bool usable = !args.saved.empty() && bf16_backward(args) == bf16_operands(args.in);
    return usable ? const_cast<std::byte*>(args.saved.data()) : nullptr;
  }
  // Without saved states a forward scan is needed in any case, which has V' beside them.
  static bool has_saved_v_new(const RecurrenceBackward& args) {
    return reusable(args) != nullptr && static_cast<bool>(args.chunk_states);
  }

  BumpAllocator memory;
  ChunkLaunch launch;
  StatesOut states;  // where the caller has none
  StatesOut d_states;
  std::byte *v_new, *d_residual;
  bool has_partials;  // dq and dk need reduce_dqk
  float *dq_partials = nullptr, *dk_partials = nullptr, *dk_factors = nullptr;

  BackwardLaunch(const Context& context, const RecurrenceBackward& args, std::byte* base)
      : memory(base), launch(context, args.in, args.run, bf16_backward(args), true, memory, reusable(args)) {
    if (!args.chunk_states) states = launch.operand_states(memory);
    d_states = launch.operand_states(memory);
    const auto rows = [&] { return ChunkLaunch::allocate_rows(launch.slots, launch.dims.column_blocks, memory); };
    v_new = has_saved_v_new(args) ? launch.v_new : rows();
    d_residual = rows();
    const RecurrenceLayout& at = launch.at;
    has_partials =
        at.HV != at.H || launch.dims.key_dim > gradient_key_tile(padded_key_dim(launch.dims.key_dim), launch.bf16);
    if (has_partials) {
      dq_partials = memory.take<float>(at.B * at.T * at.HV * at.K);
      dk_partials = memory.take<float>(at.B * at.T * at.HV * at.K);
      dk_factors = memory.take<float>(at.B * at.T * at.HV);
    }
  }
};

}  // namespace

void allow_shared_memory(const Context& context, const void* kernel, int bytes) {
  cudaFuncAttributes attributes{};
  QDELTA_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  const std::size_t needed = attributes.sharedSizeBytes + static_cast<std::size_t>(bytes);
  if (needed > static_cast<std::size_t>(context.shared_memory())) {
    fail(Status::unsupported,
         "the chunkwise recurrence needs {} bytes of shared memory at this width and type; GPU {} ({}) has {}", needed,
         context.ordinal(), context.name(), context.shared_memory());
  }
  QDELTA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

std::size_t recurrence_chunk_workspace(const Context& context, const RecurrenceForward& args) {
  check_call(args);
  return ForwardLaunch(context, args, nullptr).memory.used();
}

std::size_t recurrence_chunk_saved_bytes(Rule rule, std::int64_t chunks, std::int64_t V) {
  BumpAllocator memory(nullptr);
  (void)ChunkLaunch::allocate_prepared(traits_of(rule), chunks, memory);
  (void)ChunkLaunch::allocate_rows(chunks, ChunkLaunch::column_blocks(V), memory);
  return memory.used();
}

std::size_t recurrence_chunk_workspace(const Context& context, const RecurrenceBackward& args) {
  check_call(args);
  return BackwardLaunch(context, args, nullptr).memory.used();
}

void recurrence_chunk_forward(const Context& context, const RecurrenceForward& args, Workspace& workspace) {
  const ForwardLaunch work(context, args, workspace.get(recurrence_chunk_workspace(context, args)).data());
  const ChunkLaunch& launch = work.launch;
  if (launch.at.N == 0) return;
  launch.build_chunk_tables(context, args.in);
  launch.prepare(context, args.in);
  ForwardScanArgs scan = launch.forward_scan(args.in);
  launch.split_forward(context, scan);
  scan.chunk_states = state_tensor(args.chunk_states);
  scan.final_states = state_tensor(args.ht);
  scan.o = token_tensor(args.o);
  scan.v_new = launch.v_new;
  launch_forward_scan(context, scan, launch.bf16);
}

void recurrence_chunk_backward(const Context& context, const RecurrenceBackward& args, Workspace& workspace) {
  const BackwardLaunch work(context, args, workspace.get(recurrence_chunk_workspace(context, args)).data());
  const ChunkLaunch& launch = work.launch;
  if (launch.at.N == 0) return;
  launch.build_chunk_tables(context, args.in);
  if (BackwardLaunch::reusable(args) == nullptr) launch.prepare(context, args.in);

  // Chunk states and V': saved, or from a forward scan. With saved states alone it has V' of all chunks in parallel.
  ForwardScanArgs forward = launch.forward_scan(args.in);
  const ForwardScanArgs plain_forward = forward;
  if (!args.chunk_states) {
    launch.split_forward(context, forward);
    forward.chunk_states = work.states;
  } else {
    forward.per_chunk = true;
    forward.shared = {};
    forward.initial_states = state_tensor(args.chunk_states);
  }
  forward.v_new = work.v_new;
  if (launch.slots > 0 && !BackwardLaunch::has_saved_v_new(args)) launch_forward_scan(context, forward, launch.bf16);

  BackwardScanArgs backward = launch.backward_scan(args.in, args.d_o);
  backward.d_final_states = state_tensor(args.d_ht);
  backward.d_initial_states = state_tensor(args.dh0);
  backward.d_states = work.d_states;
  backward.dv = token_tensor(args.dv);
  backward.d_residual = work.d_residual;
  launch.split_backward(context, plain_forward, backward);
  launch_backward_scan(context, backward, launch.bf16);
  if (launch.slots == 0) return;

  GradientsArgs gradients{};
  gradients.dims = launch.dims;
  gradients.chunks = launch.chunks;
  gradients.rule = args.in.rule;
  gradients.erases = launch.traits.erases;
  gradients.qk_l2norm = args.in.qk_l2norm;
  gradients.has_d_k_dot_k = rule_backward<float>(args.in.rule, {0, 1, 1, 1}, {1, 1, 1, 1}).k_dot_k != 0;
  gradients.scale = args.in.scale;
  gradients.q = forward.q;
  gradients.k = forward.k;
  gradients.v = forward.v;
  gradients.d_o = backward.d_o;
  gradients.prepared = launch.prepared;
  gradients.states = args.chunk_states ? state_tensor(args.chunk_states) : read_only(work.states);
  gradients.d_states = read_only(work.d_states);
  gradients.v_new = work.v_new;
  gradients.d_residual = work.d_residual;
  gradients.dq = token_tensor(args.dq);
  gradients.dk = token_tensor(args.dk);
  gradients.dg = token_tensor(args.dg);
  gradients.dbeta = token_tensor(args.dbeta);
  gradients.dlambda = token_tensor(args.dlambda);
  gradients.dq_partials = work.dq_partials;
  gradients.dk_partials = work.dk_partials;
  gradients.dk_factors = work.dk_factors;
  gradients.batch = launch.at.B;
  gradients.tokens = launch.at.T;
  launch_gradients(context, gradients, launch.bf16);
  if (work.has_partials) launch_reduce_dqk(context, gradients);
}

// ---------------------------------------------------------------------------------------------------------------------
// Maps of ranges of tokens (recurrence_map.cpp).

MapsOfSegments recurrence_chunk_maps(const Context& context, const RecurrenceMap& args, BumpAllocator& memory) {
  check_inputs(args.in, {}, RecurrenceLayout(args.in, kChunk));
  const ChunkLaunch launch(context, args.in, {}, bf16_operands(args.in), false, memory, nullptr);
  const MapsOfSegments maps = launch.maps_of_segments(memory);
  if (maps.N == nullptr || launch.at.N == 0) return maps;
  launch.build_chunk_tables(context, args.in);
  launch.prepare(context, args.in);
  launch.scan_maps(context, launch.forward_scan(args.in),
                   {.M = maps.M, .N = maps.N, .first = static_cast<bool>(args.m), .last = true});
  return maps;
}

MapsOfSegments recurrence_chunk_maps(const Context& context, const RecurrenceEntryGradient& args,
                                     BumpAllocator& memory) {
  check_inputs(args.in, {}, RecurrenceLayout(args.in, kChunk));
  check_contiguous("do", args.d_o);
  const bool bf16 = bf16_operands(args.in) && args.d_o.dtype == DType::bf16;
  const ChunkLaunch launch(context, args.in, {}, bf16, false, memory, nullptr);
  const MapsOfSegments maps = launch.maps_of_segments(memory);
  if (maps.N == nullptr || launch.at.N == 0) return maps;
  launch.build_chunk_tables(context, args.in);
  launch.prepare(context, args.in);
  if (launch.is_split()) launch.scan_maps(context, launch.forward_scan(args.in), {.M = maps.M, .first = true});
  BackwardScanArgs backward = launch.backward_scan(args.in, args.d_o);
  backward.segment_dN = maps.N;
  backward.first_dN = true;
  launch_backward_scan(context, backward, launch.bf16);
  return maps;
}

}  // namespace qdelta::cuda
