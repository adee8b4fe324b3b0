#include "io/csv.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"

namespace qdelta {
namespace {

std::string field_in_quotes(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string result(1, '"');
  for (const char c : text) result.append(c == '"' ? 2 : 1, c);
  result += '"';
  return result;
}

std::string field_text(const Csv::Field& field) {
  if (const auto* whole = std::get_if<std::int64_t>(&field)) return std::to_string(*whole);
  if (const auto* text = std::get_if<std::string>(&field)) return field_in_quotes(*text);
  const double number = std::get<double>(field);
  return std::isfinite(number) ? fmt::format("{}", number) : "";
}

}  // namespace

Csv::Csv(std::vector<std::string> columns) : columns_(columns.size()) {
  for (std::size_t i = 0; i < columns.size(); ++i)
    text_ += fmt::format("{}{}", i > 0 ? "," : "", field_in_quotes(columns[i]));
  text_ += '\n';
}

void Csv::add(std::initializer_list<Field> fields) {
  require(fields.size() == columns_, "a row of {} fields in a table of {} columns", fields.size(), columns_);
  bool first = true;
  for (const Field& field : fields) {
    text_ += fmt::format("{}{}", first ? "" : ",", field_text(field));
    first = false;
  }
  text_ += '\n';
}

}  // namespace qdelta
