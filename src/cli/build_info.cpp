// Only what the compiler itself says counts: it cannot disagree with how this file was compiled.
#include "cli/build_info.h"

#include <fmt/format.h>

#include "qdelta_commit.h"

#if defined(__has_feature)
#define QDELTA_HAS_FEATURE(name) __has_feature(name)
#else
#define QDELTA_HAS_FEATURE(name) 0
#endif

#if defined(__GNUC__) && !defined(__clang__)
// GCC has no macro for its undefined-behaviour sanitizer, but a program built with it is linked with its runtime.
extern "C" [[gnu::weak]] void __ubsan_handle_add_overflow();  // NOLINT(bugprone-reserved-identifier)
#endif

namespace qdelta {
namespace {

std::string compiler() {
#if defined(__clang__)
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown compiler";
#endif
}

std::string type() {
#if defined(__OPTIMIZE__)
  std::string text = "optimised";
#else
  std::string text = "not optimised";
#endif
#if defined(NDEBUG)
  return text + ", without assertions";
#else
  return text + ", with assertions";
#endif
}

std::string architecture() {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "another architecture";
#endif
}

bool undefined_behaviour_sanitizer() {
#if defined(__clang__)
  return QDELTA_HAS_FEATURE(undefined_behavior_sanitizer);
#elif defined(__GNUC__)
  return __ubsan_handle_add_overflow != nullptr;
#else
  return false;
#endif
}

std::vector<std::string> sanitizers() {
  std::vector<std::string> names;
#if defined(__SANITIZE_ADDRESS__) || QDELTA_HAS_FEATURE(address_sanitizer)
  names.emplace_back("address");
#endif
#if defined(__SANITIZE_THREAD__) || QDELTA_HAS_FEATURE(thread_sanitizer)
  names.emplace_back("thread");
#endif
  if (undefined_behaviour_sanitizer()) names.emplace_back("undefined");
  return names;
}

}  // namespace

BuildInfo build_info() {
  return {compiler(), static_cast<int>(__cplusplus / 100 % 100), type(), architecture(), sanitizers(), QDELTA_COMMIT};
}

}  // namespace qdelta
