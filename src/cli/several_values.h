// Options that may be given any number of values, each of which is a text or a path.
#pragma once

#include <CLI/CLI.hpp>

namespace qdelta {

// CLI11 takes "[a, b]" for a list of two where the number of values has no bound (`allow_extra_args`), so these have
// one. It is smaller than that from which CLI11 without `allow_extra_args` takes only one value behind each flag
// (`expected_max_vector_size` / 16).
inline constexpr int kSeveralValues = 1 << 20;

// For an option with a flag: "--prompt A B" and "--prompt A --prompt B" are two values, each as it stands.
inline CLI::Option* several_values(CLI::Option* option) {
  static_assert(kSeveralValues < CLI::detail::expected_max_vector_size / 16);
  return option->allow_extra_args(false)->expected(1, kSeveralValues);
}

}  // namespace qdelta
