// What an output gate makes of its projection before it multiplies.
#pragma once

#include <cstdint>

namespace qdelta {

enum class GateActivation : std::uint8_t { silu, sigmoid };

}  // namespace qdelta
