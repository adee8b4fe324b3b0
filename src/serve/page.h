// The page at /, src/serve/page.html: one file inside the binary, without anything from elsewhere.
#pragma once

#include <string_view>

namespace qdelta::serve {

[[nodiscard]] std::string_view page();

}  // namespace qdelta::serve
