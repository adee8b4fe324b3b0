#include "template/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "template/strings.h"

namespace qdelta::jinja {
namespace {

[[noreturn]] void too_large(const Budget& budget) { budget.unsupported("an integer beyond 64 bits"); }

void needs_defined(const Budget& budget, const Value& value) {
  if (value.is_undefined()) budget.fail("{} is undefined", value.undefined_name());
}

[[noreturn]] void no_operation(const Budget& budget, const Value& a, const Value& b) {
  needs_defined(budget, a);
  needs_defined(budget, b);
  budget.fail("{} and {} do not go together here", type_name(a), type_name(b));
}

Value integer_power(Budget& budget, std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) budget.fail("0 to a negative power");
    return {std::pow(static_cast<double>(base), static_cast<double>(exponent))};
  }
  if (base == 0 || base == 1) return {exponent == 0 ? std::int64_t{1} : base};
  if (base == -1) return {exponent % 2 == 0 ? std::int64_t{1} : std::int64_t{-1}};
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) {  // ends by overflow after 63 rounds
    if (__builtin_mul_overflow(result, base, &result)) too_large(budget);
  }
  return {result};
}

Value integer_operation(Budget& budget, Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::subtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::multiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::divide:
      if (b == 0) budget.fail("division by zero");
      return {static_cast<double>(a) / static_cast<double>(b)};
    case Operator::floor_divide:
    case Operator::modulo: {
      if (b == 0) budget.fail("division by zero");
      if (b == -1) {
        overflow = op == Operator::floor_divide && __builtin_sub_overflow(std::int64_t{0}, a, &result);
        break;
      }
      const std::int64_t remainder = a % b;
      const bool down = remainder != 0 && (remainder < 0) != (b < 0);  // Python rounds towards minus infinity
      result = op == Operator::modulo ? remainder + (down ? b : 0) : a / b - (down ? 1 : 0);
      break;
    }
    default:
      return integer_power(budget, a, b);
  }
  if (overflow) too_large(budget);
  return {result};
}

double real_modulo(double a, double b) {
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

// As CPython does it, so that the last bits are the same.
double real_floor_divide(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double real_power(Budget& budget, double a, double b) {
  if (a == 0 && b < 0) budget.fail("0 to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) budget.unsupported("a complex number");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) budget.fail("the power is too large");
  return result;
}

Value real_operation(Budget& budget, Operator op, double a, double b) {
  const bool divides = op == Operator::divide || op == Operator::floor_divide || op == Operator::modulo;
  if (divides && b == 0) budget.fail("division by zero");
  switch (op) {
    case Operator::add:
      return {a + b};
    case Operator::subtract:
      return {a - b};
    case Operator::multiply:
      return {a * b};
    case Operator::divide:
      return {a / b};
    case Operator::floor_divide:
      return {real_floor_divide(a, b)};
    case Operator::modulo:
      return {real_modulo(a, b)};
    default:
      return {real_power(budget, a, b)};
  }
}

Value add_texts(Budget& budget, const Text& a, const Text& b) {
  const bool markup = a.markup || b.markup;
  std::string result = markup && !a.markup ? escaped(a.bytes) : a.bytes;
  result += markup && !b.markup ? escaped(b.bytes) : b.bytes;
  budget.charge_bytes(result.size());
  return Value::text(result, markup);
}

Value repeated(Budget& budget, const Value& value, std::int64_t times) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  const auto check = [&](std::size_t size) {
    if (size > 0 && count > budget.limits().output / size) budget.charge_bytes(budget.limits().output + 1);
  };
  if (const Text* text = value.text()) {
    check(text->bytes.size());
    budget.charge_bytes(text->bytes.size() * count);
    std::string result;
    result.reserve(text->bytes.size() * count);
    for (std::size_t i = 0; i < count && !text->bytes.empty(); ++i) result += text->bytes;
    return Value::text(result, text->markup);
  }
  const Sequence& all = *value.list_or_tuple();
  check(all.elements.size());
  budget.charge(all.elements.size() * count);
  std::vector<Value> elements;
  for (std::size_t i = 0; i < count && !all.elements.empty(); ++i) {
    elements.insert(elements.end(), all.elements.begin(), all.elements.end());
  }
  return Value::sequence(budget, std::move(elements), all.kind);
}

bool can_repeat(const Value& value) { return value.text() != nullptr || value.list_or_tuple() != nullptr; }

struct Bounds {
  std::int64_t start = 0, step = 1, count = 0;
};

// As PySlice_AdjustIndices has it.
Bounds slice_bounds(Budget& budget, std::int64_t length, const Value& from, const Value& to, const Value& by) {
  const auto integer = [&](const Value& value, std::int64_t otherwise) {
    if (value.is_none()) return otherwise;
    if (value.is_undefined()) needs_defined(budget, value);
    if (!value.is_integral()) budget.fail("the bounds of a slice are integers, not {}", type_name(value));
    return value.integer();
  };
  Bounds bounds;
  bounds.step = integer(by, 1);
  if (bounds.step == 0) budget.fail("a slice with the step 0");
  const bool back = bounds.step < 0;
  const auto adjust = [&](std::int64_t at) {
    if (at < 0) at += length;
    if (at < 0) return back ? std::int64_t{-1} : std::int64_t{0};
    return at >= length ? (back ? length - 1 : length) : at;
  };
  bounds.start = from.is_none() ? (back ? length - 1 : 0) : adjust(integer(from, 0));
  const std::int64_t stop = to.is_none() ? (back ? -1 : length) : adjust(integer(to, 0));
  bounds.count = Range{bounds.start, stop, bounds.step}.length();
  return bounds;
}

Value slice_text(Budget& budget, const Text& text, const Bounds& bounds) {
  budget.charge_bytes(text.bytes.size());
  std::string result;
  if (bounds.step == 1) {
    const std::size_t begin = byte_of(text.bytes, bounds.start);
    const std::string_view rest = std::string_view(text.bytes).substr(begin);
    result = rest.substr(0, byte_of(rest, bounds.count));
    return Value::text(result, text.markup);
  }
  std::vector<std::size_t> starts;  // of the characters
  for (std::size_t at = 0; at < text.bytes.size(); at += byte_of(std::string_view(text.bytes).substr(at), 1)) {
    starts.push_back(at);
  }
  starts.push_back(text.bytes.size());
  for (std::int64_t i = 0; i < bounds.count; ++i) {
    const auto at = static_cast<std::size_t>(bounds.start + i * bounds.step);
    result.append(text.bytes, starts[at], starts[at + 1] - starts[at]);
  }
  return Value::text(result, text.markup);
}

}  // namespace

Value unary(Budget& budget, Operator op, const Value& value) {
  if (op == Operator::negation) return {!truth(value)};
  needs_defined(budget, value);
  if (!value.is_number()) budget.fail("{} has no sign", type_name(value));
  if (value.is<double>()) return {op == Operator::subtract ? -value.real() : value.real()};
  if (op == Operator::add) return {value.integer()};
  return integer_operation(budget, Operator::subtract, 0, value.integer());
}

Value binary(Budget& budget, Operator op, const Value& a, const Value& b) {
  budget.charge(1);
  if (a.is_integral() && b.is_integral()) return integer_operation(budget, op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return real_operation(budget, op, a.real(), b.real());
  if (op == Operator::add) {
    if (a.text() != nullptr && b.text() != nullptr) return add_texts(budget, *a.text(), *b.text());
    const Sequence* x = a.list_or_tuple();
    const Sequence* y = b.list_or_tuple();
    if (x != nullptr && y != nullptr && x->kind == y->kind) {
      std::vector<Value> elements = x->elements;
      elements.insert(elements.end(), y->elements.begin(), y->elements.end());
      return Value::sequence(budget, std::move(elements), x->kind);
    }
  }
  if (op == Operator::multiply && can_repeat(a) && b.is_integral()) return repeated(budget, a, b.integer());
  if (op == Operator::multiply && a.is_integral() && can_repeat(b)) return repeated(budget, b, a.integer());
  if (op == Operator::modulo && a.text() != nullptr) budget.unsupported("the operator % with a string");
  no_operation(budget, a, b);
}

bool compare(Budget& budget, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::eq:
      return equal(budget, a, b);
    case Operator::ne:
      return !equal(budget, a, b);
    case Operator::in:
      return contains(budget, b, a);
    case Operator::not_in:
      return !contains(budget, b, a);
    default:
      break;
  }
  needs_defined(budget, a);
  needs_defined(budget, b);
  const int sign = order(budget, a, b);
  if (sign == 2) return false;
  return op == Operator::lt ? sign < 0 : op == Operator::le ? sign <= 0 : op == Operator::gt ? sign > 0 : sign >= 0;
}

Value slice(Budget& budget, const Value& value, const Value& start, const Value& stop, const Value& step) {
  needs_defined(budget, value);
  const std::int64_t length = length_of(value);
  if (value.text() == nullptr && value.list_or_tuple() == nullptr && value.range() == nullptr) {
    budget.fail("{} has no slices", type_name(value));
  }
  const Bounds bounds = slice_bounds(budget, length, start, stop, step);
  if (value.text() != nullptr) return slice_text(budget, *value.text(), bounds);
  if (value.range() != nullptr) budget.unsupported("a slice of a range");
  std::vector<Value> elements;
  budget.charge(static_cast<std::size_t>(bounds.count));
  for (std::int64_t i = 0; i < bounds.count; ++i) {
    elements.push_back(value.sequence()->elements[static_cast<std::size_t>(bounds.start + i * bounds.step)]);
  }
  return Value::sequence(budget, std::move(elements), value.sequence()->kind);
}

Value element_at(Budget& budget, const Value& value, std::int64_t index) {
  const std::int64_t length = length_of(value);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return Value::undefined("an element that is not there");
  if (const Text* text = value.text()) {
    budget.charge(1 + (text->ascii() ? 0 : text->bytes.size() / 16));
    const std::size_t begin = text->ascii() ? static_cast<std::size_t>(index) : byte_of(text->bytes, index);
    const std::string_view rest = std::string_view(text->bytes).substr(begin);
    return Value::text(rest.substr(0, byte_of(rest, 1)), text->markup);
  }
  if (value.range() != nullptr) return {value.range()->at(index)};
  return value.sequence()->elements[static_cast<std::size_t>(index)];
}

}  // namespace qdelta::jinja
