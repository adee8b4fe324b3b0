#pragma once

#include <span>

#include "kernels/copy_many.h"
#include "kernels/cuda/context.h"

namespace qdelta::cuda {

void copy_many(const Context& context, std::span<const CopyPart> parts);

}  // namespace qdelta::cuda
