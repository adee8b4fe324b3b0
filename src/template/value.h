// The values of a template: JSON's, and what Python adds to them (tuples, ranges, iterators, functions, undefined).
//
// Values cannot be changed once made, as in transformers' sandbox; only namespaces can. So no value holds itself, and
// what refers to a namespace, a macro or a loop does so by a pointer into memory that lives as long as the rendering.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "template/budget.h"

namespace qdelta::jinja {

class Value;
struct Builtin;
struct Macro;
struct Namespace;
struct LoopState;

struct Undefined {
  std::string what;  // for messages: 'name' is undefined
};
struct None {};

struct Text {
  std::string bytes;        // UTF-8
  std::int64_t length = 0;  // in characters
  bool markup = false;      // the result of `safe` or `escape`: what is added to it is escaped
  [[nodiscard]] bool ascii() const { return static_cast<std::size_t>(length) == bytes.size(); }
};

enum class SequenceKind : std::uint8_t { list, tuple, keys, values, items };
struct Sequence {
  std::vector<Value> elements;
  SequenceKind kind = SequenceKind::list;
  int depth = 1;
};

class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  // Replaces the value where the key is known; the key must be hashable.
  void insert(Budget& budget, Value key, Value value);
  [[nodiscard]] const Value* find(Budget& budget, const Value& key) const;
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] int depth() const { return depth_; }

 private:
  [[nodiscard]] std::optional<std::size_t> locate(Budget& budget, const Value& key) const;
  std::vector<Entry> entries_;
  std::unordered_multimap<std::size_t, std::size_t> index_;  // from hashes to entries; empty where there are few
  int depth_ = 1;
};

struct Range {
  std::int64_t start = 0, stop = 0, step = 1;
  [[nodiscard]] std::int64_t length() const;
  [[nodiscard]] std::int64_t at(std::int64_t i) const { return start + i * step; }
};

// What Python's generators and iterators are: something to go through once. The elements are known from the start.
struct Generator {
  std::vector<Value> elements;
  std::size_t next = 0;
  int depth = 1;
};

struct Function {
  const Builtin* builtin = nullptr;
  const Macro* macro = nullptr;
  std::shared_ptr<const Value> self;  // of a method
};

class Value {
 public:
  using Data = std::variant<std::shared_ptr<const Undefined>, None, bool, std::int64_t, double,
                            std::shared_ptr<const Text>, std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
                            Range, std::shared_ptr<Generator>, Namespace*, LoopState*, Function>;

  Value() = default;                                                     // undefined
  Value(None) : data_(None{}) {}                                         // NOLINT(google-explicit-constructor)
  Value(bool value) : data_(value) {}                                    // NOLINT(google-explicit-constructor)
  Value(std::int64_t value) : data_(value) {}                            // NOLINT(google-explicit-constructor)
  Value(double value) : data_(value) {}                                  // NOLINT(google-explicit-constructor)
  Value(Range value) : data_(value) {}                                   // NOLINT(google-explicit-constructor)
  Value(Function value) : data_(std::move(value)) {}                     // NOLINT(google-explicit-constructor)
  Value(Namespace* value) : data_(value) {}                              // NOLINT(google-explicit-constructor)
  Value(LoopState* value) : data_(value) {}                              // NOLINT(google-explicit-constructor)
  Value(std::shared_ptr<const Dict> value) : data_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  static Value undefined(std::string what);
  static Value text(std::string_view bytes, bool markup = false);
  static Value sequence(Budget& budget, std::vector<Value> elements, SequenceKind kind = SequenceKind::list);
  static Value generator(Budget& budget, std::vector<Value> elements);
  static Value dict(Budget& budget, Dict dict);
  // Refuses what is nested too deeply, is no UTF-8, or has an integer beyond 64 bits with a sign.
  static Value from_json(Budget& budget, const nlohmann::ordered_json& json, int depth = 0);

  template <class T>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<T>(data_);
  }
  [[nodiscard]] bool is_undefined() const { return data_.index() == 0; }
  [[nodiscard]] bool is_none() const { return is<None>(); }
  [[nodiscard]] bool is_integral() const { return is<bool>() || is<std::int64_t>(); }  // a Python int
  [[nodiscard]] bool is_number() const { return is_integral() || is<double>(); }

  // Null where it is something else.
  [[nodiscard]] const Text* text() const;
  [[nodiscard]] const Sequence* sequence() const;
  [[nodiscard]] const Sequence* list_or_tuple() const;
  [[nodiscard]] const Dict* dict() const;
  [[nodiscard]] const std::shared_ptr<Generator>* generator() const;
  [[nodiscard]] const Range* range() const { return std::get_if<Range>(&data_); }
  [[nodiscard]] const Function* function() const { return std::get_if<Function>(&data_); }
  [[nodiscard]] Namespace* space() const;
  [[nodiscard]] LoopState* loop() const;

  [[nodiscard]] std::int64_t integer() const;  // of an integral value
  [[nodiscard]] double real() const;           // of a number
  [[nodiscard]] std::string undefined_name() const;
  [[nodiscard]] int depth() const;  // how many levels of containers there are
  [[nodiscard]] bool same_object(const Value& other) const;

 private:
  Data data_;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// Goes through what Python can iterate over. The value must live as long as this.
class Iterator {
 public:
  Iterator(Budget& budget, Value value);  // refuses what is not iterable
  [[nodiscard]] bool next(Value& element);
  [[nodiscard]] static bool possible(const Value& value);

 private:
  Budget* budget_;
  Value value_;
  std::size_t at_ = 0;
};

[[nodiscard]] std::vector<Value> elements_of(Budget& budget, const Value& value);
// -1 where Python's len() refuses.
[[nodiscard]] std::int64_t length_of(const Value& value);
[[nodiscard]] bool truth(const Value& value);
[[nodiscard]] bool equal(Budget& budget, const Value& a, const Value& b);
// Negative, 0 or positive, as far as Python orders them; a NaN is not before, equal to or after anything: 2.
[[nodiscard]] int order(Budget& budget, const Value& a, const Value& b);
[[nodiscard]] bool contains(Budget& budget, const Value& container, const Value& element);
// As Python's type() names it, for messages.
[[nodiscard]] std::string_view type_name(const Value& value);

}  // namespace qdelta::jinja
