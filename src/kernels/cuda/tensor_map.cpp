#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include <array>
#include <cstring>

namespace qdelta::cuda {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) == alignof(CUtensorMap));

// The function is the driver's: asked for at run time, so that nothing is linked to it.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  QDELTA_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess) fail(Status::unsupported, "the GPU's driver knows no tensor maps");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

// Strides in elements, of rows, heads and indices.
TensorMap encode(const void* data, const TensorExtents& extents, const std::array<std::int64_t, 3>& strides,
                 int box_rows) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encoder = find_encoder();
  const cuuint64_t shape[4] = {static_cast<cuuint64_t>(extents.columns), static_cast<cuuint64_t>(extents.rows),
                               static_cast<cuuint64_t>(extents.heads), static_cast<cuuint64_t>(extents.count)};
  cuuint64_t bytes[3];
  for (std::size_t i = 0; i < 3; ++i) {
    // The stride of an axis of one means nothing and may be anything; the encoder wants a multiple of 16.
    bytes[i] = shape[i + 1] > 1 ? static_cast<cuuint64_t>(strides[i]) * 2 : 16;
  }
  const cuuint32_t box[4] = {kBlockV, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const auto run_encoder = [&] {
    return encoder(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), shape, bytes, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = run_encoder();
  if (result == CUDA_ERROR_INVALID_CONTEXT) {  // a thread that has called nothing of the runtime's yet, which binds one
    int device = 0;
    QDELTA_CUDA(cudaGetDevice(&device));
    QDELTA_CUDA(cudaSetDevice(device));
    result = run_encoder();
  }
  require(result == CUDA_SUCCESS, "the driver refuses a tensor map (error {})", static_cast<int>(result));
  TensorMap encoded;
  std::memcpy(&encoded, &map, sizeof map);
  return encoded;
}

}  // namespace

bool has_tensor_copies(const Context& context) {
  int major = 0;
  QDELTA_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.ordinal()));
  return major == 9;
}

TensorMap tensor_map(const TokensIn& tokens, const TensorExtents& extents, int box_rows) {
  return encode(tokens.data, extents, {tokens.token_stride, tokens.head_stride, tokens.batch_stride}, box_rows);
}
TensorMap tensor_map(const StatesIn& states, const TensorExtents& extents, int box_rows) {
  return encode(states.data, extents, {states.key_stride, states.head_stride, states.index_stride}, box_rows);
}
TensorMap tensor_map(const void* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  return encode(data, {columns, rows, 1, 1}, {columns, 0, 0}, box_rows);
}

}  // namespace qdelta::cuda
