// Chat templates: a subset of Jinja, as transformers sets it up (trim_blocks, lstrip_blocks, loop controls, the tag
// `generation`, an immutable sandbox, no automatic escaping).
//
//   jinja::Template chat(source);
//   std::string prompt = chat.render({{"messages", messages}, {"add_generation_prompt", true}, {"bos_token", "<s>"}});
//
// Supported:
//   tags       if elif else, for (with if, else, unpacking), break, continue, set (of several, of
//              namespaces, of blocks), macro (defaults, keywords, varargs, kwargs, caller), call, filter, with,
//              generation, raw, comments; white-space control with - and +
//   loop       index index0 first last length previtem nextitem revindex revindex0 depth depth0 cycle() changed()
//   operators  + - * / // % ** ~, comparisons (chained too), in, not in, and, or, not, is, is not, a if b else c,
//              attributes, items, slices, *args and **kwargs in calls
//   filters    abs batch capitalize count d default dictsort e escape first float forceescape indent int items join
//              last length list lower map max min reject rejectattr replace reverse round safe select selectattr sort
//              string sum title tojson trim unique upper
//   tests      boolean callable defined divisibleby eq == equalto even false float ge >= gt > greaterthan in integer
//              iterable le <= lower lt < lessthan mapping ne != none number odd sameas sequence string true undefined
//              upper
//   functions  dict namespace raise_exception range strftime_now
//   methods    of strings: capitalize count endswith find format (plain fields) index isdigit islower isspace isupper
//              join lower lstrip removeprefix removesuffix replace rfind rsplit rstrip split splitlines startswith
//              strip title upper; of dicts: get items keys values; of lists and tuples: count index
// Not: recursive loops, blocks and other templates, % of strings, integers beyond 64 bits, and every other filter,
// test, tag and method of Jinja and Python. A template that uses one is refused, by name and line: tags, filters and
// tests when it is read, methods when they are reached.
//
// Values print as in Python (True, None, 1.0, ['a']). A name that is not known is undefined: it prints as nothing, and
// its attributes are errors. Letters change case as in Unicode 14.0.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/error.h"

namespace qdelta::jinja {

// Against templates, and conversations, that would take all time and memory.
struct Limits {
  std::int64_t steps = 10'000'000;  // about a second; an operation takes one, and one more for 16 bytes it makes
  std::size_t output = std::size_t{16} << 20;  // bytes, of the result and of every text on the way there
  int depth = 400;                             // of calls and expressions within each other
};

// What the template itself says is wrong, with raise_exception(): the message and nothing else.
class Raised : public Error {
 public:
  explicit Raised(const std::string& message) : Error(Status::invalid_argument, message) {}
};

struct Syntax;

class Template {
 public:
  // Throws Error: corrupt where this is not a template, unsupported where it needs what is not there.
  explicit Template(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  Template(const Template&) = delete;
  Template& operator=(const Template&) = delete;

  // `variables` is an object; the order of keys is that of the text, as Python keeps it. Throws Raised, or Error:
  // invalid_argument where the template cannot be rendered with these variables or within the limits, unsupported.
  // Several threads may render the same template.
  [[nodiscard]] std::string render(const nlohmann::ordered_json& variables, const Limits& limits = {}) const;

  // What strftime_now() shows, in seconds since 1970, in the local time zone; the time now unless a test says
  // otherwise.
  std::function<std::int64_t()> clock;

 private:
  std::unique_ptr<const Syntax> syntax_;
};

}  // namespace qdelta::jinja
