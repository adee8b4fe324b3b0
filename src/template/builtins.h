// The filters, tests, functions and methods there are: tables of names, parameters and what to run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "template/value.h"

namespace qdelta::jinja {

class Interpreter;

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A call of a builtin, with the arguments in the order of its parameters.
struct Call {
  Interpreter& run;
  Budget& budget;
  const Builtin& builtin;
  const Value& self;  // what is filtered or tested, or whose method this is
  Arguments& all;     // of one that takes any arguments
  std::vector<std::optional<Value>> values;

  [[nodiscard]] bool has(std::size_t i) const { return values[i].has_value(); }
  [[nodiscard]] const Value& at(std::size_t i) const { return *values[i]; }
  [[nodiscard]] bool flag(std::size_t i, bool otherwise = false) const { return has(i) ? truth(at(i)) : otherwise; }
  // These refuse a value of another type.
  [[nodiscard]] std::int64_t integer(std::size_t i) const;
  [[nodiscard]] const Text& text(std::size_t i) const;
};

struct Builtin {
  std::string_view name;
  std::string_view parameters;  // their names, those before a slash needed; "*" for any arguments
  Value (*run)(Call&);
  bool named = true;  // whether arguments may be given by name
};

// Null where there is none of that name.
[[nodiscard]] const Builtin* find_filter(std::string_view name);
[[nodiscard]] const Builtin* find_test(std::string_view name);
[[nodiscard]] const Builtin* find_function(std::string_view name);
// Of this value. Refuses those that Python has and this has not.
[[nodiscard]] const Builtin* find_method(Budget& budget, const Value& self, std::string_view name);

[[nodiscard]] Value call_builtin(Interpreter& run, const Builtin& builtin, const Value& self, Arguments arguments);

// Gets an attribute by its path, such as "function.name", for filters that take one.
[[nodiscard]] Value attribute_at(Interpreter& run, const Value& item, const Value& path);

// Numbers as Python's int() and float() read them; nullopt where those refuse.
[[nodiscard]] std::optional<std::int64_t> parse_integer(Budget& budget, std::string_view text, std::int64_t base);
[[nodiscard]] std::optional<double> parse_real(std::string_view text);

// The parts of the tables, by file.
[[nodiscard]] const Builtin* find_text_filter(std::string_view name);
[[nodiscard]] const Builtin* find_sequence_filter(std::string_view name);
[[nodiscard]] const Builtin* find_string_method(std::string_view name);

}  // namespace qdelta::jinja
