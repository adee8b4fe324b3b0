// y[n] = table[ids[n]];   dtable[ids[n]] += dy[n]: a thread takes some columns through all tokens, so that the order of
// the additions to a row is that of the tokens.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/layers.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/view_check.h"

namespace qdelta::cpu {

namespace {

void check_ids(std::span<const std::int32_t> ids, std::int64_t vocabulary) {
  for (std::size_t n = 0; n < ids.size(); ++n) {
    require(ids[n] >= 0 && ids[n] < vocabulary, "token {} has id {}, but the vocabulary has {} entries", n, ids[n],
            vocabulary);
  }
}

}  // namespace

void embedding_forward(const Device& device, const EmbeddingForward& args) {
  check_matrix(args.table, "table");
  check_matrix(args.y, "y");
  check_ids(args.ids, args.table.extent(0));
  const auto bytes = static_cast<std::size_t>(args.table.extent(1)) * sizeof(float);
  for_rows(device, static_cast<std::int64_t>(args.ids.size()), [&](std::int64_t n) {
    std::memcpy(floats(args.y) + n * args.y.step(0),
                floats(args.table) + args.ids[static_cast<std::size_t>(n)] * args.table.step(0), bytes);
  });
}

void embedding_backward(const Device& device, const EmbeddingBackward& args) {
  check_matrix(args.dtable, "dtable");
  check_matrix(args.dy, "dy");
  check_ids(args.ids, args.dtable.extent(0));
  constexpr std::int64_t kColumns = 64;
  const std::int64_t width = args.dtable.extent(1);
  parallel_for(ceil_div(width, kColumns), thread_count(device.threads), [&](std::int64_t block, int /*worker*/) {
    const std::int64_t begin = block * kColumns;
    const std::int64_t end = std::min(width, begin + kColumns);
    for (std::size_t n = 0; n < args.ids.size(); ++n) {
      const float* from = floats(args.dy) + static_cast<std::int64_t>(n) * args.dy.step(0);
      float* to = floats(args.dtable) + args.ids[n] * args.dtable.step(0);
      for (std::int64_t i = begin; i < end; ++i) to[i] += from[i];
    }
  });
}

void copy_rows(const Device& device, const CopyRows& args) {
  check_matrix(args.from, "from");
  check_matrix(args.to, "to");
  require(args.from.shape == args.to.shape, "cannot copy {} to {}", args.from.shape.text(), args.to.shape.text());
  const std::int64_t width = args.from.extent(1);
  for_rows(device, args.from.extent(0), [&](std::int64_t n) {
    const float* from = floats(args.from) + n * args.from.step(0);
    float* to = floats(args.to) + n * args.to.step(0);
    if (!args.add) {
      std::memcpy(to, from, static_cast<std::size_t>(width) * sizeof(float));
      return;
    }
    for (std::int64_t c = 0; c < width; ++c) to[c] += from[c];
  });
}

void add_product(const Device& /*device*/, const AddProduct& args) {
  for (std::size_t i = 0; i < args.out.size(); ++i) args.out[i] += args.a[i] * args.b[i];
}

}  // namespace qdelta::cpu
