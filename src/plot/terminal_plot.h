// A panel as lines of text, for a quick look.
//
//   11 ┤⡇
//      │⢳
//    5 ┤ ⠱⣄
//      │  ⠈⠑⠢⠤⣀⣀⣀
//      └┬────┬────┬
//       0   5B  10B
#pragma once

#include <string>
#include <vector>

#include "plot/figure.h"

namespace qdelta::plot {

struct TerminalStyle {
  int width = 80, height = 24;  // of the whole, in characters
  bool color = false;
  bool unicode = true;  // dots of eight per character, and finer axes
};

// Every line ends with a newline. Where colors cannot tell several series apart, each has a sign of its own instead of
// the finer dots. Bands, guides and faint lines are left out.
[[nodiscard]] std::string terminal_plot(const Panel& panel, const TerminalStyle& style);
[[nodiscard]] std::string terminal_plot(const std::vector<Series>& series, int width, int height);

}  // namespace qdelta::plot
