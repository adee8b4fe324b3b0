// y = x w^T for a few rows of x, as in decoding: bound by reading w once.
#pragma once

#include "kernels/layers.h"

namespace qdelta::cpu {

// Up to this many rows it beats a general matrix product.
inline constexpr std::int64_t kFewRows = 16;

// Each y[r][o] is the same sum in the same order whatever the number of rows, so a sequence decodes the same in any
// batch.
void linear_few_rows(const Device& device, const LinearForward& args);

}  // namespace qdelta::cpu
