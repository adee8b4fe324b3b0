// y[n] = table[ids[n]];   dtable[ids[n]] += dy[n]
// The backward sorts the tokens by id with a stable sort. Blocks of kRun sorted tokens are summed in parallel: the sum
// of an id within one block is added to the table directly, an id that spans several blocks leaves a partial sum in
// each, and a last kernel adds these in order. So the result is deterministic.
#include <cub/device/device_radix_sort.cuh>

#include <bit>

#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/layers.h"

namespace qdelta::cuda {
namespace {

template <class From, class To, int N>
__global__ __launch_bounds__(kBlockThreads) void copy_rows_kernel(Rows<From> from, Rows<To> to, const std::int32_t* ids,
                                                                  std::int64_t table_rows, unsigned packs,
                                                                  std::int64_t count, bool add) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (index >= count) return;
  const unsigned row = static_cast<unsigned>(index) / packs;
  const unsigned c = (static_cast<unsigned>(index) - row * packs) * N;
  const std::int64_t source = ids == nullptr ? std::int64_t{row} : std::int64_t{ids[row]};
  float values[N];
  if (source >= 0 && source < table_rows) {
    const auto pack = from.template load<N>(source, c);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = pack[i];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = __int_as_float(0x7fffffff);  // NaN
  }
  if (add) {
    const auto pack = to.template load<N>(row, c);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] += pack[i];
  }
  to.template store<N>(row, c, values);
}

__global__ __launch_bounds__(kBlockThreads) void add_product_kernel(const float* a, const float* b, float* out,
                                                                    std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i < count) out[i] = fmaf(a[i], b[i], out[i]);
}

void gather_rows(const Context& context, const ConstTensorView& from, const TensorView& to, const std::int32_t* ids,
                 bool add = false) {
  if (to.shape.elements() == 0) return;
  const auto run = [&](auto from_type, auto to_type) {
    using From = typename decltype(from_type)::type;
    using To = typename decltype(to_type)::type;
    constexpr int N = kVectorWidth<From, To>;
    const std::int64_t packs = to.extent(1) / N;
    const std::int64_t count = to.extent(0) * packs;
    check_count(count, "copy_rows");
    copy_rows_kernel<From, To, N><<<blocks_for(count, kBlockThreads), kBlockThreads, 0, context.stream()>>>(
        as_rows<From>(from), as_rows<To>(to), ids, from.extent(0), static_cast<unsigned>(packs), count, add);
    check_launch("copy_rows");
  };
  const bool narrow = from.dtype == DType::bf16 && to.dtype == DType::bf16;
  if (!aligned(narrow ? 8 : 4, {from, to})) return run(TypeTag<RuntimeType>(), TypeTag<RuntimeType>());
  dispatch_dtype(from.dtype, [&](auto a) { dispatch_dtype(to.dtype, [&](auto b) { run(a, b); }); });
}

// Backward ------------------------------------------------------------------------------------------------------------
constexpr int kRun = 32;

__global__ void make_sort_keys_kernel(const std::int32_t* ids, std::int64_t vocabulary, std::int64_t count,
                                      std::uint32_t* keys, std::uint32_t* tokens) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (n >= count) return;
  const std::int32_t id = ids[n];
  // An id outside the table sorts to the end and is not added.
  keys[n] = id >= 0 && id < vocabulary ? static_cast<std::uint32_t>(id) : static_cast<std::uint32_t>(vocabulary);
  tokens[n] = static_cast<std::uint32_t>(n);
}

struct SortedTokens {
  const std::uint32_t *keys, *tokens;
  std::int64_t count, vocabulary, width;
  // [blocks][width]: partial sums of the id continued from the block before, and of the one that continues in the next.
  float *continued_sums, *open_sums;

  __device__ bool continues_in_next(std::int64_t block) const {
    const std::int64_t end = (block + 1) * kRun;
    return end < count && keys[end - 1] == keys[end];
  }
};

// A thread block for kRun tokens and kBlockThreads * N columns.
template <class T, int N>
__global__ __launch_bounds__(kBlockThreads) void sum_runs_kernel(SortedTokens a, Rows<T> dy, Rows<float> dtable) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * kBlockThreads + threadIdx.x) * N;
  if (c >= a.width) return;
  const std::int64_t block = blockIdx.x;
  const std::int64_t begin = block * kRun;
  const int size = static_cast<int>(min(std::int64_t{kRun}, a.count - begin));
  const bool continued = begin > 0 && a.keys[begin - 1] == a.keys[begin];
  const bool open = a.continues_in_next(block);
  float sum[N] = {};
  bool first = true;
  std::uint32_t key = a.keys[begin];
  constexpr int kLoadsInFlight = 4;  // rows in flight
  for (int i0 = 0; i0 < size; i0 += kLoadsInFlight) {
    Pack<T, N> rows[kLoadsInFlight];
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k) {
      if (i0 + k < size) rows[k] = dy.template load<N>(a.tokens[begin + i0 + k], c);
    }
#pragma unroll
    for (int k = 0; k < kLoadsInFlight; ++k) {
      const int i = i0 + k;
      if (i >= size) break;
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += rows[k][j];
      const bool last = i + 1 == size;
      const std::uint32_t next = last ? 0 : a.keys[begin + i + 1];
      if (!last && next == key) continue;
      // The end of an id's run within this block.
      if ((first && continued) || (last && open)) {
        float* out = first && continued ? a.continued_sums : a.open_sums;
        Rows<float>{out, a.width}.template store<N>(block, c, sum);
      } else if (key < a.vocabulary) {
        const auto old = dtable.template load<N>(key, c);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += old[j];
        dtable.template store<N>(key, c, sum);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] = 0;
      key = next;
      first = false;
    }
  }
}

// For every block in which an id begins that continues in the next.
__global__ __launch_bounds__(kBlockThreads) void join_runs_kernel(SortedTokens a, Rows<float> dtable) {
  const std::int64_t c = std::int64_t{blockIdx.y} * kBlockThreads + threadIdx.x;
  const std::int64_t block = blockIdx.x;
  if (c >= a.width || !a.continues_in_next(block)) return;
  const std::int64_t begin = block * kRun;
  const std::uint32_t key = a.keys[begin + kRun - 1];
  if (key >= a.vocabulary || (begin > 0 && a.keys[begin - 1] == key)) return;
  float sum = a.open_sums[block * a.width + c];
  std::int64_t other = block;
  do {
    ++other;
    sum += a.continued_sums[other * a.width + c];
  } while (a.continues_in_next(other) && a.keys[(other + 1) * kRun - 1] == key);
  dtable.data[key * dtable.ld + c] += sum;
}

struct BackwardWorkspace {
  std::uint32_t *keys, *tokens, *sorted_keys, *sorted_tokens;
  float *continued_sums, *open_sums;
  std::byte* sort;
  std::size_t sort_bytes = 0, used = 0;

  BackwardWorkspace(std::int64_t count, std::int64_t width, std::byte* base) {
    BumpAllocator memory(base);
    keys = memory.take<std::uint32_t>(count);
    tokens = memory.take<std::uint32_t>(count);
    sorted_keys = memory.take<std::uint32_t>(count);
    sorted_tokens = memory.take<std::uint32_t>(count);
    continued_sums = memory.take<float>(ceil_div(count, kRun) * width);
    open_sums = memory.take<float>(ceil_div(count, kRun) * width);
    QDELTA_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, keys, sorted_keys, tokens, sorted_tokens,
                                                static_cast<int>(count)));
    sort = memory.take<std::byte>(static_cast<std::int64_t>(sort_bytes));
    used = memory.used();
  }
};

}  // namespace

void embedding_forward(const Context& context, const EmbeddingForward& args) {
  check_matrix(args.table, "table");
  check_matrix(args.y, {static_cast<std::int64_t>(args.ids.size()), args.table.extent(1)}, "y");
  gather_rows(context, args.table, args.y, args.ids.data());
}

void copy_rows(const Context& context, const CopyRows& args) {
  check_matrix(args.from, "from");
  check_matrix(args.to, "to");
  require(args.from.shape == args.to.shape, "cannot copy {} to {}", args.from.shape.text(), args.to.shape.text());
  gather_rows(context, args.from, args.to, nullptr, args.add);
}

void add_product(const Context& context, const AddProduct& args) {
  const auto count = static_cast<std::int64_t>(args.out.size());
  if (count == 0) return;
  add_product_kernel<<<blocks_for(count, kBlockThreads), kBlockThreads, 0, context.stream()>>>(
      args.a.data(), args.b.data(), args.out.data(), count);
  check_launch("add_product");
}

void embedding_backward(const Context& context, const EmbeddingBackward& args, std::span<std::byte> workspace) {
  const auto count = static_cast<std::int64_t>(args.ids.size());
  check_matrix(args.dtable, "dtable");
  require(args.dtable.dtype == DType::f32, "dtable is {}, but gradients of parameters are F32",
          name_of(args.dtable.dtype));
  check_matrix(args.dy, {count, args.dtable.extent(1)}, "dy");
  check_workspace(workspace, embedding_backward_workspace(args));
  const std::int64_t vocabulary = args.dtable.extent(0);
  const std::int64_t width = args.dtable.extent(1);
  if (count == 0 || width == 0) return;
  require(count < (std::int64_t{1} << 31), "embedding: {} tokens are too many for one launch", count);
  const BackwardWorkspace s(count, width, workspace.data());
  make_sort_keys_kernel<<<blocks_for(count, kBlockThreads), kBlockThreads, 0, context.stream()>>>(
      args.ids.data(), vocabulary, count, s.keys, s.tokens);
  check_launch("embedding_sort_keys");
  std::size_t sort_bytes = s.sort_bytes;
  QDELTA_CUDA(cub::DeviceRadixSort::SortPairs(
      s.sort, sort_bytes, s.keys, s.sorted_keys, s.tokens, s.sorted_tokens, static_cast<int>(count), 0,
      static_cast<int>(std::bit_width(static_cast<std::uint64_t>(vocabulary))), context.stream()));
  const SortedTokens sorted{.keys = s.sorted_keys,
                            .tokens = s.sorted_tokens,
                            .count = count,
                            .vocabulary = vocabulary,
                            .width = width,
                            .continued_sums = s.continued_sums,
                            .open_sums = s.open_sums};
  const auto blocks = static_cast<unsigned>(ceil_div(count, kRun));
  const auto run = [&](auto type, auto access) {
    using T = typename decltype(type)::type;
    constexpr int N = decltype(access)::value;
    sum_runs_kernel<T, N><<<dim3(blocks, blocks_for(width, kBlockThreads * N)), kBlockThreads, 0, context.stream()>>>(
        sorted, as_rows<T>(args.dy), as_rows<float>(args.dtable));
    check_launch("embedding_sum_runs");
  };
  if (aligned(4, {args.dy, args.dtable})) {
    dispatch_dtype(args.dy.dtype, [&](auto type) { run(type, std::integral_constant<int, 4>()); });
  } else {
    run(TypeTag<RuntimeType>(), std::integral_constant<int, 1>());
  }
  join_runs_kernel<<<dim3(blocks, blocks_for(width, kBlockThreads)), kBlockThreads, 0, context.stream()>>>(
      sorted, as_rows<float>(args.dtable));
  check_launch("embedding_join_runs");
}

std::size_t embedding_backward_workspace(const EmbeddingBackward& args) {
  return BackwardWorkspace(static_cast<std::int64_t>(args.ids.size()), args.dtable.extent(1), nullptr).used;
}

}  // namespace qdelta::cuda
