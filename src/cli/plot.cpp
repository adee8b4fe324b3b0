// `qdelta plot`: the curves of training runs, as an SVG or PNG figure or in the terminal.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "core/error.h"
#include "plot/figure.h"
#include "plot/png.h"
#include "plot/run_figure.h"
#include "plot/terminal_plot.h"
#include "train/progress.h"

namespace qdelta {
namespace {

constexpr const char* kPlotHelp =
    "A RUN is the folder of a run, which has a log.jsonl, or such a log itself; a run may still be going on. Several\n"
    "are drawn over each other and named after their folders. Without --out the curves are shown in the terminal.\n"
    "PNG pictures need librsvg (Debian: librsvg2-2).\n"
    "\n"
    "What can be drawn is what the log has: loss, validation_loss, learning_rate, gradient_norm, tokens_per_second,\n"
    "seconds, skipped, and any other number by its name.\n"
    "\n"
    "Examples:\n"
    "  qdelta plot runs/qdelta\n"
    "  qdelta plot runs/qdelta runs/gated_deltanet --out loss.svg --smooth 0.9 --log-y\n"
    "  qdelta plot runs/* --out overview.png --y loss,validation_loss,gradient_norm --x step";

constexpr int kTerminalRows = 22;
constexpr int kWidestTerminal = 160;  // beyond it curves only get flatter

struct PlotOptions {
  std::vector<std::string> runs;
  std::string out;
  bool terminal = false;
  plot::RunFigureOptions figure;
};

void print_panel(const plot::Panel& panel) {
  const bool live = is_live_terminal(STDOUT_FILENO);
  const ProgressStyle environment = style_from_environment();
  plot::TerminalStyle style;
  style.width = std::min(terminal_columns(STDOUT_FILENO) - 1, kWidestTerminal);
  style.height = kTerminalRows;
  style.color = live && environment.color;
  style.unicode = environment.unicode;
  fmt::print("{}\n", plot::terminal_plot(panel, style));
}

// By the ending of the file's name.
bool wants_png(const std::string& path) {
  const std::string ending = CLI::detail::to_lower(std::filesystem::path(path).extension().string());
  require(ending == ".svg" || ending == ".png", "--out {}: the name must end with .svg or .png", path);
  return ending == ".png";
}

void run(const PlotOptions& options) {
  const bool png = !options.out.empty() && wants_png(options.out);
  const plot::Figure figure = plot::figure_of(plot::read_runs(options.runs), options.figure);
  if (options.terminal || options.out.empty()) {
    for (const plot::Panel& panel : figure.panels) print_panel(panel);
  }
  if (options.out.empty()) return;
  if (png) {
    plot::write_png(plot::svg(figure), options.out);
  } else {
    plot::write_svg(figure, options.out);
  }
  fmt::print("wrote {}\n", options.out);
}

}  // namespace

void add_plot(CLI::App& app) {
  CLI::App* command = app.add_subcommand("plot", "Draw the curves of training runs, to a file or the terminal");
  command->footer(kPlotHelp);
  auto options = std::make_shared<PlotOptions>();
  PlotOptions& o = *options;
  command->add_option("runs", o.runs, "Folders of runs, or their logs")->required()->option_text("RUN...");
  command->add_option("--out", o.out, "The file to write: .svg, or .png")->option_text("FILE");
  command->add_option("--x", o.figure.x, "tokens (default), step or seconds")->option_text("NAME");
  command
      ->add_option("--y", o.figure.y,
                   "What to draw: loss (default), validation_loss, ...; several, with commas\n"
                   "between, make several panels")
      ->delimiter(',')
      ->option_text("NAME,...");
  command
      ->add_option("--smooth", o.figure.smooth,
                   "0 (default): not. Up to 1: the weight of the past in a moving average, as in TensorBoard")
      ->check(CLI::Range(0.0, 0.9999))
      ->option_text("S");
  command->add_flag("--log-x", o.figure.log_x, "Logarithmic x axis");
  command->add_flag("--log-y", o.figure.log_y, "Logarithmic y axis");
  command->add_flag("--terminal", o.terminal, "Show it in the terminal, also where --out is given");
  command->callback([options] { run(*options); });
}

}  // namespace qdelta
