// What distributed_ranks does besides its tests.
#pragma once

#include <string_view>

namespace qdelta::testing {

// Of reduce_scatter and all_gather, beside that of memcpy.
int measure_bandwidth();
// Rank 1 fails in the way named while the others wait for it.
int fail_as(std::string_view how);

}  // namespace qdelta::testing
