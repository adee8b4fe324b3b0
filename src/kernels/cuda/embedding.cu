// y[n] = table[ids[n]];   dtable[ids[n]] += dy[n]
// The backward sorts the tokens by id, tokens of one id in their order. Blocks of kRun sorted tokens are summed
// independently: the sum of an id that lies wholly in one block goes to the table at once, an id that reaches across
// blocks leaves a partial sum in each, and a last kernel adds these up in order.
#include <cub/device/device_radix_sort.cuh>

#include <bit>

#include "kernels/cuda/layers.h"
#include "kernels/cuda/views.h"

namespace qdelta::cuda {
namespace {

template <class From, class To, int N>
__global__ __launch_bounds__(kBlock) void copy_kernel(Rows<From> from, Rows<To> to, const std::int32_t* ids,
                                                      std::int64_t table_rows, unsigned packs, std::int64_t count) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
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
  to.template store<N>(row, c, values);
}

void copy(const Context& context, const ConstTensorView& from, const TensorView& to, const std::int32_t* ids) {
  if (to.shape.elements() == 0) return;
  const auto run = [&](auto from_type, auto to_type) {
    using From = typename decltype(from_type)::type;
    using To = typename decltype(to_type)::type;
    constexpr int N = kAccess<From, To>;
    const std::int64_t packs = to.extent(1) / N;
    const std::int64_t count = to.extent(0) * packs;
    check_count(count, "copy_rows");
    copy_kernel<From, To, N><<<blocks_for(count, kBlock), kBlock, 0, context.stream()>>>(
        rows_of<From>(from), rows_of<To>(to), ids, from.extent(0), static_cast<unsigned>(packs), count);
    check_launch("copy_rows");
  };
  const bool narrow = from.dtype == DType::bf16 && to.dtype == DType::bf16;
  if (!aligned(narrow ? 8 : 4, {from, to})) return run(Type<Either>(), Type<Either>());
  with_type(from.dtype, [&](auto a) { with_type(to.dtype, [&](auto b) { run(a, b); }); });
}

// Backward ------------------------------------------------------------------------------------------------------------
constexpr int kRun = 32;

__global__ void number(const std::int32_t* ids, std::int64_t vocabulary, std::int64_t count, std::uint32_t* keys,
                       std::uint32_t* tokens) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (n >= count) return;
  const std::int32_t id = ids[n];
  // An id outside the table sorts to the end, where nothing is added.
  keys[n] = id >= 0 && id < vocabulary ? static_cast<std::uint32_t>(id) : static_cast<std::uint32_t>(vocabulary);
  tokens[n] = static_cast<std::uint32_t>(n);
}

struct Sorted {
  const std::uint32_t *keys, *tokens;
  std::int64_t count, vocabulary, width;
  // [blocks][width]: of the id that goes on from the block before, and of the one that goes on into the next.
  float *from_before, *into_next;

  __device__ bool joins_next(std::int64_t block) const {
    const std::int64_t end = (block + 1) * kRun;
    return end < count && keys[end - 1] == keys[end];
  }
};

// A block of tokens and kBlock * N columns.
template <class T, int N>
__global__ __launch_bounds__(kBlock) void sum_runs(Sorted a, Rows<T> dy, Rows<float> dtable) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * kBlock + threadIdx.x) * N;
  if (c >= a.width) return;
  const std::int64_t block = blockIdx.x;
  const std::int64_t begin = block * kRun;
  const int size = static_cast<int>(min(std::int64_t{kRun}, a.count - begin));
  const bool continues = begin > 0 && a.keys[begin - 1] == a.keys[begin];
  const bool goes_on = a.joins_next(block);
  float sum[N] = {};
  bool first = true;
  std::uint32_t key = a.keys[begin];
  constexpr int kAhead = 4;  // rows in flight
  for (int i0 = 0; i0 < size; i0 += kAhead) {
    Pack<T, N> rows[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i0 + k < size) rows[k] = dy.template load<N>(a.tokens[begin + i0 + k], c);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int i = i0 + k;
      if (i >= size) break;
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += rows[k][j];
      const bool last = i + 1 == size;
      const std::uint32_t next = last ? 0 : a.keys[begin + i + 1];
      if (!last && next == key) continue;
      // The end of an id's run within this block.
      if ((first && continues) || (last && goes_on)) {
        float* out = first && continues ? a.from_before : a.into_next;
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

// For every block in which an id begins that goes on into the next.
__global__ __launch_bounds__(kBlock) void join_runs(Sorted a, Rows<float> dtable) {
  const std::int64_t c = std::int64_t{blockIdx.y} * kBlock + threadIdx.x;
  const std::int64_t block = blockIdx.x;
  if (c >= a.width || !a.joins_next(block)) return;
  const std::int64_t begin = block * kRun;
  const std::uint32_t key = a.keys[begin + kRun - 1];
  if (key >= a.vocabulary || (begin > 0 && a.keys[begin - 1] == key)) return;
  float sum = a.into_next[block * a.width + c];
  std::int64_t other = block;
  do {
    ++other;
    sum += a.from_before[other * a.width + c];
  } while (a.joins_next(other) && a.keys[(other + 1) * kRun - 1] == key);
  dtable.data[key * dtable.ld + c] += sum;
}

struct Scratch {
  std::uint32_t *keys, *tokens, *sorted_keys, *sorted_tokens;
  float *from_before, *into_next;
  std::byte* sort;
  std::size_t sort_bytes = 0, used = 0;

  Scratch(std::int64_t count, std::int64_t width, std::byte* base) {
    BumpAllocator memory(base);
    keys = memory.take<std::uint32_t>(count);
    tokens = memory.take<std::uint32_t>(count);
    sorted_keys = memory.take<std::uint32_t>(count);
    sorted_tokens = memory.take<std::uint32_t>(count);
    from_before = memory.take<float>(ceil_div(count, kRun) * width);
    into_next = memory.take<float>(ceil_div(count, kRun) * width);
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
  copy(context, args.table, args.y, args.ids.data());
}

void copy_rows(const Context& context, const CopyRows& args) {
  check_matrix(args.from, "from");
  check_matrix(args.to, "to");
  require(args.from.shape == args.to.shape, "cannot copy {} to {}", args.from.shape.text(), args.to.shape.text());
  copy(context, args.from, args.to, nullptr);
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
  const Scratch s(count, width, workspace.data());
  number<<<blocks_for(count, kBlock), kBlock, 0, context.stream()>>>(args.ids.data(), vocabulary, count, s.keys,
                                                                     s.tokens);
  check_launch("number");
  std::size_t sort_bytes = s.sort_bytes;
  QDELTA_CUDA(cub::DeviceRadixSort::SortPairs(
      s.sort, sort_bytes, s.keys, s.sorted_keys, s.tokens, s.sorted_tokens, static_cast<int>(count), 0,
      static_cast<int>(std::bit_width(static_cast<std::uint64_t>(vocabulary))), context.stream()));
  const Sorted sorted{s.sorted_keys, s.sorted_tokens, count, vocabulary, width, s.from_before, s.into_next};
  const auto blocks = static_cast<unsigned>(ceil_div(count, kRun));
  const auto run = [&](auto type, auto access) {
    using T = typename decltype(type)::type;
    constexpr int N = decltype(access)::value;
    sum_runs<T, N><<<dim3(blocks, blocks_for(width, kBlock * N)), kBlock, 0, context.stream()>>>(
        sorted, rows_of<T>(args.dy), rows_of<float>(args.dtable));
    check_launch("sum_runs");
  };
  if (aligned(4, {args.dy, args.dtable})) {
    with_type(args.dy.dtype, [&](auto type) { run(type, std::integral_constant<int, 4>()); });
  } else {
    run(Type<Either>(), std::integral_constant<int, 1>());
  }
  join_runs<<<dim3(blocks, blocks_for(width, kBlock)), kBlock, 0, context.stream()>>>(sorted,
                                                                                      rows_of<float>(args.dtable));
  check_launch("join_runs");
}

std::size_t embedding_backward_workspace(const EmbeddingBackward& args) {
  return Scratch(static_cast<std::int64_t>(args.ids.size()), args.dtable.extent(1), nullptr).used;
}

}  // namespace qdelta::cuda
