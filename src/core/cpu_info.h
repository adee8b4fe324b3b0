// What the processor of this machine offers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qdelta {

// An instruction set that kernels here or in oneDNN make use of.
struct CpuFeature {
  std::string_view name;   // "avx512_bf16"
  std::string_view title;  // "AVX512-BF16"
  bool in_cpu = false;     // the processor has it
  bool usable = false;     // and the operating system saves its registers, so that programs may use it
};

struct CpuCache {
  int level = 0;
  std::string type;            // "data", "instruction" or "unified"
  std::int64_t bytes = 0;      // of one of them
  std::string shared_by_cpus;  // as the kernel lists them: "0-7"
};

// Numbers are 0 and texts empty where the system does not tell.
struct CpuInfo {
  std::string model;
  int cores = 0;             // physical
  int hardware_threads = 0;  // logical processors
  int allowed_threads = 0;   // those this process may run on
  std::vector<CpuFeature> features;
  std::vector<CpuCache> caches;
  std::int64_t memory_bytes = 0;
  std::int64_t memory_available_bytes = 0;  // without swapping
};

// Asks the processor and the system anew at each call.
[[nodiscard]] CpuInfo cpu_info();

// The Highway target that the kernels pick on this machine ("AVX2", "AVX3" for AVX-512, ...), and those they are
// compiled for, best first.
[[nodiscard]] std::string simd_target();
[[nodiscard]] std::vector<std::string> simd_targets_compiled();

}  // namespace qdelta
