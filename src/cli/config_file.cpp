#include "cli/config_file.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>

#include "core/error.h"
#include "io/regular_file.h"
#include "io/untrusted_text.h"

namespace qdelta {

void apply_config_file(CLI::App& command, const std::string& path) {
  std::istringstream in(read_text_file(path));
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(in);
  } catch (const CLI::Error& error) {
    fail(Status::corrupt, "{}: {}", path, error.what());
  }
  std::set<std::string> seen;
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // the parser's marks of where a section begins and ends
    require(item.parents.empty(), "{}: '{}' is in a section, but settings have none", path, item.fullname());
    CLI::Option* option = command.get_option_no_throw("--" + item.name);
    require(option != nullptr, "{}: there is no setting {}; see qdelta {} --help", path, shown(item.name),
            command.get_name());
    const bool empty = std::ranges::all_of(item.inputs, [](const std::string& value) { return value.empty(); });
    require(!empty, "{}: '{}' has no value", path, item.name);
    require(seen.insert(item.name).second, "{}: '{}' is set twice", path, item.name);
    if (option->count() > 0) continue;
    try {
      option->add_result(item.inputs);
      option->run_callback();
    } catch (const CLI::Error& error) {
      fail(Status::invalid_argument, "{}: '{}': {}", path, item.name, error.what());
    }
  }
}

}  // namespace qdelta
