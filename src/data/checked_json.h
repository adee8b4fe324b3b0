// JSON that comes out of files and requests (io/parse_json.h): every value knows its place, so that every complaint can
// say where.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "io/parse_json.h"

namespace qdelta {

class JsonAt {
 public:
  // `label` names the file. Neither is copied: both must outlive this.
  JsonAt(const nlohmann::json& value, const std::string& label) : value_(&value), label_(&label) {}

  [[nodiscard]] const nlohmann::json& value() const { return *value_; }
  [[nodiscard]] bool is_null() const { return value_->is_null(); }
  [[nodiscard]] bool has(const char* key) const { return value_->is_object() && value_->contains(key); }

  // What is wrong here, after the file and the place.
  template <class... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(Status::corrupt, prefix() + fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(Status::unsupported, prefix() + fmt::format(format, std::forward<Args>(args)...));
  }
  // Runs something that may throw an Error which does not know the place.
  template <class Action>
  auto within(Action&& action) const {
    try {
      return action();
    } catch (const Error& error) {
      throw Error(error.status(), prefix() + error.what());
    }
  }

  // A member of an object; it must be there.
  [[nodiscard]] JsonAt at(const char* key) const;
  [[nodiscard]] std::vector<JsonAt> elements() const;  // of an array
  // No other keys than these: one that is not known might change what the others mean.
  void only(std::initializer_list<std::string_view> keys) const;

  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::int64_t integer(std::int64_t low, std::int64_t high) const;
  [[nodiscard]] char32_t character() const;  // a string of one
  [[nodiscard]] bool boolean_or(const char* key, bool otherwise) const {
    return has(key) ? at(key).boolean() : otherwise;
  }

 private:
  JsonAt(const nlohmann::json& value, const std::string& label, std::string place)
      : value_(&value), label_(&label), place_(std::move(place)) {}
  [[nodiscard]] std::string prefix() const { return *label_ + ": " + (place_.empty() ? "" : place_ + ": "); }
  void expect(bool condition, std::string_view wanted) const;

  const nlohmann::json* value_;
  const std::string* label_;
  std::string place_;  // such as pre_tokenizer.pretokenizers[1]
};

}  // namespace qdelta
