// CUDA's types without its functions, for tests/emulator.
#pragma once

#include "cuda_runtime.h"
