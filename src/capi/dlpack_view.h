// DLPack tensors as our views.
#pragma once

#include <dlpack/dlpack.h>

#include <string_view>

#include "core/tensor.h"

namespace qdelta {

// A null tensor gives an empty view. Throws where the tensor is not on `device`, or has a type or strides that cannot
// be used; `name` is for the message.
[[nodiscard]] TensorView view_of(const DLTensor* tensor, std::string_view name, const DLDevice& device);

}  // namespace qdelta
