// Python's operators.
#pragma once

#include "template/syntax.h"
#include "template/value.h"

namespace qdelta::jinja {

[[nodiscard]] Value unary(Budget& budget, Operator op, const Value& value);
[[nodiscard]] Value binary(Budget& budget, Operator op, const Value& a, const Value& b);
[[nodiscard]] bool compare(Budget& budget, Operator op, const Value& a, const Value& b);
// Bounds and step are integers or none.
[[nodiscard]] Value slice(Budget& budget, const Value& value, const Value& start, const Value& stop, const Value& step);
// An element by its number, from the end where that is negative; undefined where there is none.
[[nodiscard]] Value element_at(Budget& budget, const Value& value, std::int64_t index);

}  // namespace qdelta::jinja
