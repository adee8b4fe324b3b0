// The tables of packed sequences, which say where the chunks and segments of each are.
#include "kernels/cuda/kernel_launch.h"
#include "kernels/cuda/recurrence_chunk_args.h"

namespace qdelta::cuda {
namespace {

// One block.
__global__ void build_chunk_tables_kernel(const Chunks chunks, const Segments segments) {
  if (threadIdx.x == 0) {
    std::int64_t chunk_sum = 0;
    std::int64_t segment_sum = 0;
    for (std::int64_t n = 0; n < chunks.sequences; ++n) {
      chunks.first_chunk[n] = chunk_sum;
      segments.first_segment[n] = segment_sum;
      const std::int64_t tokens = chunks.cu_seqlens[n + 1] - chunks.cu_seqlens[n];
      const std::int64_t count = (tokens + kChunk - 1) / kChunk;
      chunk_sum += count;
      if (segments.fixed) {
        segment_sum += tokens / (segments.chunks * kChunk) + 1;
      } else {
        segment_sum += count <= segments.chunks ? 1 : (count + segments.chunks - 1) / segments.chunks;
      }
    }
    chunks.first_chunk[chunks.sequences] = chunk_sum;
    segments.first_segment[chunks.sequences] = segment_sum;
    segments.first_chunk[segment_sum] = chunk_sum;
  }
  __syncthreads();
  for (std::int64_t n = threadIdx.x; n < chunks.sequences; n += blockDim.x) {
    for (std::int64_t c = chunks.first_chunk[n]; c < chunks.first_chunk[n + 1]; ++c)
      chunks.sequence[c] = static_cast<std::int32_t>(n);
    for (std::int64_t s = segments.first_segment[n]; s < segments.first_segment[n + 1]; ++s) {
      segments.sequence[s] = static_cast<std::int32_t>(n);
      segments.first_chunk[s] = chunks.first_chunk[n] + (s - segments.first_segment[n]) * segments.chunks;
    }
  }
}

}  // namespace

void launch_build_chunk_tables(const Context& context, const Chunks& chunks, const Segments& segments) {
  build_chunk_tables_kernel<<<1, 256, 0, context.stream()>>>(chunks, segments);
  check_launch("recurrence build_chunk_tables");
}

}  // namespace qdelta::cuda
