#include "data/checked_json.h"

#include <algorithm>

#include "data/unicode.h"
#include "io/untrusted_text.h"

namespace qdelta {

void JsonAt::expect(bool condition, std::string_view wanted) const {
  if (!condition) corrupt("must be {}, not {}", wanted, value_->type_name());
}

JsonAt JsonAt::at(const char* key) const {
  expect(value_->is_object(), "an object");
  const auto found = value_->find(key);
  if (found == value_->end()) corrupt("{} is missing", key);
  return {*found, *label_, place_.empty() ? key : place_ + "." + key};
}

std::vector<JsonAt> JsonAt::elements() const {
  expect(value_->is_array(), "an array");
  std::vector<JsonAt> all;
  all.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    all.push_back(JsonAt((*value_)[i], *label_, fmt::format("{}[{}]", place_, i)));
  }
  return all;
}

void JsonAt::only(std::initializer_list<std::string_view> keys) const {
  expect(value_->is_object(), "an object");
  for (const auto& [key, unused] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) unsupported("the setting {} is not known", shown(key));
  }
}

std::string JsonAt::text() const {
  expect(value_->is_string(), "a string");
  return value_->get<std::string>();
}

bool JsonAt::boolean() const {
  expect(value_->is_boolean(), "true or false");
  return value_->get<bool>();
}

std::int64_t JsonAt::integer(std::int64_t low, std::int64_t high) const {
  const bool in_range = value_->is_number_integer() &&
                        (!value_->is_number_unsigned() || value_->get<std::uint64_t>() <= INT64_MAX) &&
                        value_->get<std::int64_t>() >= low && value_->get<std::int64_t>() <= high;
  if (!in_range) corrupt("must be a whole number from {} to {}", low, high);
  return value_->get<std::int64_t>();
}

char32_t JsonAt::character() const {
  const std::string all = text();
  if (all.empty() || unicode::character_at(all.data()).length != all.size()) corrupt("must be one character");
  return unicode::character_at(all.data()).code;
}

}  // namespace qdelta
