#include "core/cpu_info.h"

#include <hwy/targets.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <set>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace qdelta {
namespace {

constexpr const char* kCpuFolder = "/sys/devices/system/cpu/cpu";

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// What follows "key   :" in a file such as /proc/cpuinfo; empty where it has no such line.
std::string value_of(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t key_end = line.find_last_not_of(" \t", colon == 0 ? 0 : colon - 1) + 1;
    if (std::string_view(line).substr(0, key_end) != key) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

// A size as the kernel writes it: "32K", "16384 kB"; 0 where it cannot be read.
std::int64_t bytes_of(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) return 0;
  const char* const unit = std::find_if(rest, end, [](char c) { return c != ' '; });
  if (unit == end) return value;
  if (*unit == 'K' || *unit == 'k') return value << 10;
  if (*unit == 'M') return value << 20;
  return *unit == 'G' ? value << 30 : value;
}

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros for a leaf that the processor does not have.
Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

constexpr bool has(std::uint64_t word, std::uint64_t mask) { return (word & mask) == mask; }
constexpr std::uint64_t bits(std::initializer_list<int> positions) {
  std::uint64_t mask = 0;
  for (const int position : positions) mask |= std::uint64_t{1} << position;
  return mask;
}

// XCR0: the registers that the operating system keeps for every process.
std::uint64_t kept_registers() {
  if (!has(cpuid(1).ecx, bits({27}))) return 0;  // no XGETBV
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32u) | low;
}

// Linux hands out the 8 KB of AMX tiles only to processes that ask. This asks whether it would, and takes nothing.
bool kernel_grants_tiles() {
#if defined(__linux__)
  constexpr int kGetSupportedFeatures = 0x1021;  // ARCH_GET_XCOMP_SUPP
  std::uint64_t supported = 0;
  return syscall(SYS_arch_prctl, kGetSupportedFeatures, &supported) == 0 && has(supported, bits({18}));
#else
  return false;
#endif
}

std::vector<CpuFeature> features() {
  const Registers one = cpuid(1);
  const Registers seven = cpuid(7, 0);
  const Registers seven_one = seven.eax >= 1 ? cpuid(7, 1) : Registers{};
  const std::uint64_t kept = kept_registers();
  const bool ymm = has(kept, bits({1, 2}));
  const bool zmm = ymm && has(kept, bits({5, 6, 7}));
  const bool tiles = has(kept, bits({17, 18})) && kernel_grants_tiles();

  const bool avx = has(one.ecx, bits({28}));
  const bool avx2 = avx && has(seven.ebx, bits({5}));
  const bool fma = avx && has(one.ecx, bits({12}));
  const bool avx512 = avx2 && has(seven.ebx, bits({16, 17, 28, 30, 31}));  // F, DQ, CD, BW, VL: what compilers assume
  const bool avx512_bf16 = avx512 && has(seven_one.eax, bits({5}));
  const bool amx_bf16 = has(seven.edx, bits({22, 24}));  // with AMX-TILE
  return {{"avx2", "AVX2", avx2, avx2 && ymm},
          {"fma", "FMA", fma, fma && ymm},
          {"avx512", "AVX-512", avx512, avx512 && zmm},
          {"avx512_bf16", "AVX512-BF16", avx512_bf16, avx512_bf16 && zmm},
          {"amx_bf16", "AMX-BF16", amx_bf16, amx_bf16 && tiles}};
}

std::string model_name() {
  constexpr unsigned kFirst = 0x80000002;
  std::array<char, 3 * sizeof(Registers) + 1> text{};
  for (unsigned part = 0; part < 3; ++part) {
    const Registers r = cpuid(kFirst + part);
    std::memcpy(text.data() + part * sizeof r, &r, sizeof r);
  }
  std::string name(text.data());
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name;
}

#else

std::vector<CpuFeature> features() { return {}; }
std::string model_name() { return value_of("/proc/cpuinfo", "model name"); }

#endif

int online_cpus() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

// Logical processors that share a core name the same siblings.
int physical_cores() {
  std::set<std::string> cores;
  const auto configured = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  for (int cpu = 0; cpu < configured; ++cpu) {
    std::string siblings = first_line(kCpuFolder + std::to_string(cpu) + "/topology/thread_siblings_list");
    if (!siblings.empty()) cores.insert(std::move(siblings));
  }
  return static_cast<int>(cores.size());
}

int allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Machines of more than 1024 processors need a larger set; there every processor counts as allowed.
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : online_cpus();
}

// Those of the first processor.
std::vector<CpuCache> caches() {
  std::vector<CpuCache> found;
  for (int index = 0;; ++index) {
    const std::string folder = std::string(kCpuFolder) + "0/cache/index" + std::to_string(index) + "/";
    const std::string level = first_line(folder + "level");
    if (level.empty()) return found;
    CpuCache cache;
    std::from_chars(level.data(), level.data() + level.size(), cache.level);
    cache.type = first_line(folder + "type");
    std::transform(cache.type.begin(), cache.type.end(), cache.type.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    cache.bytes = bytes_of(first_line(folder + "size"));
    cache.shared_by_cpus = first_line(folder + "shared_cpu_list");
    found.push_back(std::move(cache));
  }
}

// The names in a set of targets; the lowest bit is the best one.
std::vector<std::string> names_of(std::int64_t targets) {
  std::vector<std::string> names;
  for (; targets != 0; targets &= targets - 1) names.emplace_back(hwy::TargetName(targets & -targets));
  return names;
}

}  // namespace

CpuInfo cpu_info() {
  CpuInfo info;
  info.model = model_name();
  info.cores = physical_cores();
  info.hardware_threads = online_cpus();
  info.allowed_threads = allowed_cpus();
  info.features = features();
  info.caches = caches();
  info.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  info.memory_available_bytes = bytes_of(value_of("/proc/meminfo", "MemAvailable"));
  return info;
}

// This file is compiled with the flags of the kernels, so HWY_TARGETS is theirs.
std::string simd_target() {
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return names_of(usable != 0 ? usable : HWY_STATIC_TARGET).front();
}
std::vector<std::string> simd_targets_compiled() { return names_of(HWY_TARGETS); }

}  // namespace qdelta
