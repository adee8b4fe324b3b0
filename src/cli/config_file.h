// Settings from a TOML file: every key is the long name of a flag, and what is given on the command line wins.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace qdelta {

// Applies `path` to the options of a subcommand that were not given. An unknown key or a bad value is an error that
// names the file and the key.
void apply_config_file(CLI::App& command, const std::string& path);

}  // namespace qdelta
