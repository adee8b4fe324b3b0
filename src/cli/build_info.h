// How this binary was built.
#pragma once

#include <string>
#include <vector>

namespace qdelta {

struct BuildInfo {
  std::string compiler;  // "GCC 12.2.0"
  int cpp_standard = 0;  // 20
  std::string type;      // "optimised, without assertions"
  std::string architecture;
  std::vector<std::string> sanitizers;
  std::string commit;  // "9a3b83f01234", "... with changes" or "unknown"
};

[[nodiscard]] BuildInfo build_info();

}  // namespace qdelta
