// Tables for other programs: RFC 4180 with a header line and \n at the ends of lines.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>
#include <vector>

namespace qdelta {

class Csv {
 public:
  // A number that is not finite is an empty field.
  using Field = std::variant<std::int64_t, double, std::string>;

  explicit Csv(std::vector<std::string> columns);
  // As many fields as there are columns.
  void add(std::initializer_list<Field> fields);
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::size_t columns_;
  std::string text_;
};

}  // namespace qdelta
