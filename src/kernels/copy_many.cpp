#include "kernels/copy_many.h"

#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/copy_many.h"
#endif

namespace qdelta {

void copy_many(const Device& device, std::span<const CopyPart> parts) {
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::copy_many(*device.gpu, parts);
#endif
  for (const CopyPart& part : parts) copy_on_device(device, part.to, part.from, part.bytes);
}

}  // namespace qdelta
