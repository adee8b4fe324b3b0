#include "template/jinja.h"

#include "template/interpreter.h"
#include "template/syntax.h"

namespace qdelta::jinja {

Template::Template(std::string_view source) : syntax_(std::make_unique<const Syntax>(parse(source))) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(const nlohmann::ordered_json& variables, const Limits& limits) const {
  return Interpreter(limits, clock).render(*syntax_, variables);
}

}  // namespace qdelta::jinja
