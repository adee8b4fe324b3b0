#include "eval/data_file.h"

#include <array>
#include <charconv>
#include <filesystem>

#include "data/byte_stream.h"
#include "io/regular_file.h"
#include "io/untrusted_text.h"

namespace qdelta::eval {

std::string read_whole(const std::string& path) {
  const std::unique_ptr<ByteStream> stream = open_byte_stream(path);
  constexpr std::size_t kPart = std::size_t{1} << 18U;
  std::string text;
  while (true) {
    const std::size_t before = text.size();
    text.resize(before + kPart);
    const std::size_t got = stream->read(std::span(text).subspan(before));
    text.resize(before + got);
    if (got == 0) return text;
    if (text.size() > kMostOfAText) {
      fail(Status::unsupported, "{}: more than {} bytes, uncompressed, are too many for a data set", path,
           kMostOfAText);
    }
  }
}

namespace {

constexpr std::string_view kSpace = " \t\r\n";

void add(std::vector<Record>& records, nlohmann::json value, std::string label) {
  if (!value.is_object()) fail(Status::corrupt, "{}: must be a JSON object, such as {{\"text\": ...}}", label);
  records.push_back({std::move(value), std::move(label)});
}

// Whether the text is one JSON value: it begins with an array, or its first line is not a whole value.
bool is_one_value(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return false;
  if (text[begin] == '[') return true;
  const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  const std::size_t end = line.find_last_not_of(kSpace);
  return line[end] != '}';
}

}  // namespace

std::vector<Record> read_records(const std::string& path) {
  std::string text = read_whole(path);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // a byte order mark
  std::vector<Record> records;
  if (path.find(".json") != std::string::npos && path.find(".jsonl") == std::string::npos && is_one_value(text)) {
    nlohmann::json whole = parse_json(text, path);
    if (whole.is_array()) {
      for (std::size_t i = 0; i < whole.size(); ++i) {
        add(records, std::move(whole[i]), fmt::format("{}: element {}", path, i));
      }
    } else {
      add(records, std::move(whole), path);
    }
  } else {
    std::int64_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = std::string_view(text).substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(kSpace) == std::string_view::npos) continue;
      std::string label = fmt::format("{}: line {}", path, number);
      nlohmann::json value = parse_json(line, label);
      add(records, std::move(value), std::move(label));
    }
  }
  if (records.empty()) fail(Status::corrupt, "{}: there are no examples in it", path);
  return records;
}

std::string find_data(const std::string& folder, const std::string& task, const std::vector<std::string>& stems) {
  namespace fs = std::filesystem;
  require(!folder.empty(), "{} needs data: give the folder that has it with --data", task);
  constexpr std::array kEndings{".jsonl", ".json", ".txt", ".raw", ".tokens"};
  constexpr std::array kPacked{"", ".gz", ".zst", ".xz"};
  std::error_code ignored;
  for (const std::string& stem : stems) {
    for (const char* ending : kEndings) {
      for (const char* packed : kPacked) {
        const fs::path path = fs::path(folder) / (stem + ending + packed);
        if (fs::is_regular_file(path, ignored)) return path.string();
      }
    }
  }
  std::vector<std::string> names;
  names.reserve(stems.size());
  for (const std::string& stem : stems) names.push_back(stem + ".jsonl");
  fail(Status::io, "there is no data for {} in {}: looked for {} (also .json, .txt and compressed)", task, folder,
       fmt::join(names, ", "));
}

std::string text_at(const JsonAt& record, const char* key) { return record.at(key).text(); }

std::int64_t index_at(const JsonAt& record, const char* key, std::int64_t low, std::int64_t high) {
  const JsonAt member = record.at(key);
  if (!member.value().is_string()) return member.integer(low, high);
  const std::string text = member.text();
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stopped != end || number < low || number > high) {
    member.corrupt("is {}, expected a whole number from {} to {}", shown(text), low, high);
  }
  return number;
}

std::vector<std::string> texts_at(const JsonAt& record, const char* key) {
  std::vector<std::string> texts;
  for (const JsonAt& element : record.at(key).elements()) texts.push_back(element.text());
  return texts;
}

}  // namespace qdelta::eval
