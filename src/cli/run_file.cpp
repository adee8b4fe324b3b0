#include "cli/run_file.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/regular_file.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

std::optional<double> number(const std::string& text) {
  if (text == "true" || text == "false") return text == "true" ? 1 : 0;
  double value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

// 1e-3 is 0.001, and true is 1.
bool same(const std::string& one, const std::string& other) {
  if (one == other) return true;
  const auto a = number(one);
  const auto b = number(other);
  return a && b && *a == *b;
}

bool same(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  return std::ranges::equal(one, other, [](const auto& a, const auto& b) { return same(a, b); });
}

std::string toml_value(const std::string& value, const std::string& name) {
  if (number(value)) return value;
  const bool quote = value.find('"') != std::string::npos;
  require(!(quote && value.find('\'') != std::string::npos) && value.find('\n') == std::string::npos,
          "'{}' of --{} has both kinds of quotes or a line's end; run.toml cannot hold it", value, name);
  return quote ? "'" + value + "'" : '"' + value + '"';
}

std::string toml_line(const std::string& name, const std::vector<std::string>& values) {
  std::vector<std::string> written;
  for (const std::string& value : values) written.push_back(toml_value(value, name));
  return written.size() == 1 ? fmt::format("{} = {}\n", name, written.front())
                             : fmt::format("{} = [{}]\n", name, fmt::join(written, ", "));
}

std::vector<std::string> values_of(const CLI::Option& option) {
  if (option.count() > 0) return option.results();
  const std::string by_default = option.get_default_str();
  return by_default.empty() ? std::vector<std::string>() : std::vector{by_default};
}

}  // namespace

std::optional<RunFile> RunFile::read(const std::string& run) {
  const std::string path = (fs::path(run) / kRunFileName).string();
  std::optional<std::string> text = read_text_file_if_there(path);
  if (!text) return std::nullopt;
  std::istringstream in(*std::move(text));
  RunFile file;
  try {
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(in)) {
      if (item.name == "++" || item.name == "--") continue;  // where a section begins and ends
      if (item.parents.empty()) {
        file.settings[item.name] = item.inputs;
      } else {
        file.sections[item.parents.front()][item.name] = fmt::format("{}", fmt::join(item.inputs, " "));
      }
    }
  } catch (const CLI::Error& error) {
    fail(Status::corrupt, "{}: {}", path, error.what());
  }
  require(file.sections.contains("start"), "{} is damaged: it does not say what the run was started with", path);
  return file;
}

void RunFile::write(const std::string& run) const {
  std::string text = "# What this run was started with. qdelta train --resume and this folder go on with it.\n";
  for (const auto& [name, values] : settings) text += toml_line(name, values);
  for (const auto& [name, section] : sections) {
    text += fmt::format("\n[{}]\n", name);
    for (const auto& [key, value] : section) text += toml_line(key, {value});
  }
  write_whole((fs::path(run) / kRunFileName).string(), text);
}

void RunFile::take_settings(const CLI::App& command, const std::vector<std::string>& except) {
  settings.clear();
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_single_name();
    if (name == "help" || std::ranges::find(except, name) != except.end()) continue;
    if (const auto values = values_of(*option); !values.empty()) settings[name] = values;
  }
}

void RunFile::apply(CLI::App& command, const std::string& run, const std::vector<std::string>& free) const {
  std::vector<std::string> differences;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_single_name();
    if (option->count() == 0 || name == "help" || std::ranges::find(free, name) != free.end()) continue;
    const auto stored = settings.find(name);
    if (stored != settings.end() && same(stored->second, option->results())) continue;
    differences.push_back(
        fmt::format("  --{} is {}, but was {}", name, fmt::join(option->results(), " "),
                    stored == settings.end() ? "not given" : fmt::format("{}", fmt::join(stored->second, " "))));
  }
  require(differences.empty(), "the run in {} was started with other settings:\n{}\nLeave them out to go on with it.",
          run, fmt::join(differences, "\n"));
  for (const auto& [name, values] : settings) {
    CLI::Option* option = command.get_option_no_throw("--" + name);
    require(option != nullptr, "{}/{} has a setting '{}' that this version does not know", run, kRunFileName, name);
    if (option->count() > 0) continue;
    try {
      option->add_result(values);
      option->run_callback();
    } catch (const CLI::Error& error) {
      fail(Status::corrupt, "{}/{}: '{}': {}", run, kRunFileName, name, error.what());
    }
  }
}

void RunFile::check_section(const std::string& name, const Section& now, const std::string& what) const {
  const auto found = sections.find(name);
  if (found == sections.end()) return;
  for (const auto& [key, value] : found->second) {
    const auto other = now.find(key);
    if (other == now.end() || other->second == value) continue;
    fail(Status::invalid_argument, "{}: {} was\n  {}\nand is now\n  {}", what, key, value, other->second);
  }
}

}  // namespace qdelta
