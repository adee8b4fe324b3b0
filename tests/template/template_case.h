// Renders a template with variables given as JSON text.
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

#include "template/jinja.h"

namespace qdelta::jinja {

inline std::string rendered(std::string_view source, std::string_view variables = "{}", const Limits& limits = {}) {
  return Template(source).render(nlohmann::ordered_json::parse(variables), limits);
}

// The message that a template is refused with, when it is read or when it is rendered.
inline std::string refusal(std::string_view source, Status status, std::string_view variables = "{}",
                           const Limits& limits = {}) {
  try {
    ADD_FAILURE() << source << " renders as " << rendered(source, variables, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    return error.what();
  }
  return {};
}

}  // namespace qdelta::jinja
