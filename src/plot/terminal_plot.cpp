#include "plot/terminal_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "plot/palette.h"
#include "plot/scale.h"
#include "plot/series_shape.h"
#include "plot/text.h"
#include "plot/ticks.h"

namespace qdelta::plot {
namespace {

constexpr int kNarrowest = 12;  // of the plot itself
constexpr int kLowest = 3;
constexpr int kRowsPerTick = 3;
constexpr std::array<char32_t, 8> kSigns = {U'*', U'+', U'x', U'o', U'#', U'@', U'%', U'&'};
constexpr char32_t kNoDots = 0x2800;  // the braille block; the low eight bits are its dots
// Bits of the dots of a character, by row and column.
constexpr std::array<std::array<std::uint32_t, 2>, 4> kDots = {
    {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};

struct Cell {
  char32_t character = U' ';
  int color = -1;
};

// The color and the sign of a series are of the same number.
std::size_t look_number(const Series& series, std::size_t place) {
  return series.color ? static_cast<std::size_t>(std::max(*series.color, 0)) : place;
}
int color_of(std::size_t look) { return kTerminalPalette[look % kTerminalPalette.size()]; }

// What is only to be sensed behind the others would hide them here.
bool is_faint(const Series& series) { return series.opacity < 0.4; }

// Characters with the positions finer than they are: `across` by `down` to each.
class Canvas {
 public:
  Canvas(int columns, int rows, bool dots)
      : columns_(columns), rows_(rows), dots_(dots), cells_(static_cast<std::size_t>(columns * rows)) {}

  [[nodiscard]] int across() const { return dots_ ? 2 : 1; }
  [[nodiscard]] int down() const { return dots_ ? 4 : 1; }
  // Positions run from 0 to these, both included.
  [[nodiscard]] Rectangle area() const {
    return {0, 0, static_cast<double>(columns_ * across() - 1), static_cast<double>(rows_ * down() - 1)};
  }

  void mark(const Point& at, std::size_t look) {
    const int x = static_cast<int>(std::lround(at.x));
    const int y = static_cast<int>(std::lround(at.y));
    if (!area().contains({static_cast<double>(x), static_cast<double>(y)})) return;
    Cell& cell = cells_[static_cast<std::size_t>(y / down() * columns_ + x / across())];
    if (dots_) {
      if (cell.character == U' ') cell.character = kNoDots;
      cell.character |= kDots[static_cast<std::size_t>(y % 4)][static_cast<std::size_t>(x % 2)];
    } else {
      cell.character = kSigns[look % kSigns.size()];
    }
    cell.color = color_of(look);
  }
  void line(const Point& from, const Point& to, std::size_t look) {
    const auto inside = clipped(from, to, area());
    if (!inside) return;
    const auto& [begin, end] = *inside;
    const int steps = static_cast<int>(std::ceil(std::max(std::abs(end.x - begin.x), std::abs(end.y - begin.y))));
    for (int i = 0; i <= steps; ++i) {
      const double t = steps == 0 ? 0 : static_cast<double>(i) / steps;
      mark({begin.x + t * (end.x - begin.x), begin.y + t * (end.y - begin.y)}, look);
    }
  }
  [[nodiscard]] std::string row(int row, bool color) const {
    std::string text;
    int current = -1;
    for (int column = 0; column < columns_; ++column) {
      const Cell& cell = cells_[static_cast<std::size_t>(row * columns_ + column)];
      if (color && cell.color != current) {
        text += cell.color < 0 ? "\x1b[0m" : fmt::format("\x1b[38;5;{}m", cell.color);
        current = cell.color;
      }
      text += encoded({&cell.character, 1});
    }
    if (current >= 0) text += "\x1b[0m";
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }

 private:
  int columns_, rows_;
  bool dots_;
  std::vector<Cell> cells_;
};

int columns_of(const std::string& text) { return static_cast<int>(decoded(text).size()); }

// For terminals without Unicode: the few characters beyond ASCII that labels are made of, and question marks.
std::string plain(const std::string& text, bool unicode) {
  std::string result;
  bool raised = false;
  for (const char32_t c : decoded(text)) {
    const char digit = plain_of_raised(c);
    const bool control = c < 0x20 || c == 0x7f;
    if (unicode || control || c < 0x80) {
      const char32_t shown = control ? U' ' : c;
      result += encoded({&shown, 1});
    } else if (digit != 0) {
      result += raised ? "" : "^";
      result += digit;
    } else {
      result += c == 0x2212 ? "-" : c == 0xd7 ? "x" : c == 0x2026 ? "~" : "?";
    }
    raised = digit != 0;
  }
  return result;
}

// The text cut to so many columns.
std::string cut(const std::string& text, int columns) {
  const std::u32string all = decoded(text);
  if (static_cast<int>(all.size()) <= columns) return text;
  return columns < 2 ? "" : encoded(all.substr(0, static_cast<std::size_t>(columns - 1))) + "~";
}

std::vector<std::string> legend_lines(const Panel& panel, const TerminalStyle& style, bool dots) {
  std::vector<std::string> lines;
  int used = 0;
  for (std::size_t i = 0; i < panel.series.size(); ++i) {
    const Series& series = panel.series[i];
    if (series.label.empty()) continue;
    const std::size_t look = look_number(series, i);
    const std::string sign =
        dots ? std::string(style.unicode ? "━━" : "--") : encoded({&kSigns[look % kSigns.size()], 1});
    const std::string label = cut(plain(series.label, style.unicode), std::max(style.width - 4, 4));
    const int columns = columns_of(sign) + 1 + columns_of(label);
    if (lines.empty() || used + 3 + columns > style.width) {
      lines.emplace_back();
      used = 0;
    }
    if (used > 0) lines.back() += "   ";
    used += columns + (used > 0 ? 3 : 0);
    lines.back() +=
        style.color ? fmt::format("\x1b[38;5;{}m{}\x1b[0m {}", color_of(look), sign, label) : sign + " " + label;
  }
  return lines;
}

void draw(Canvas& canvas, const Panel& panel, const Plane& plane) {
  const std::vector<SeriesShape> shapes = shapes_of(panel, plane);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (is_faint(panel.series[i])) continue;
    const std::size_t look = look_number(panel.series[i], i);
    for (const auto* lines : {&shapes[i].lines, &shapes[i].whiskers}) {
      for (const std::vector<Point>& line : *lines) {
        for (std::size_t p = 0; p < line.size(); ++p) canvas.line(line[p > 0 ? p - 1 : 0], line[p], look);
      }
    }
    for (const Point& at : shapes[i].markers) canvas.mark(at, look);
    for (const Bar& bar : shapes[i].bars) {
      for (double x = std::ceil(bar.box.x); x <= std::max(bar.box.right() - 0.5, std::ceil(bar.box.x)); ++x) {
        canvas.line({x, bar.box.y}, {x, bar.box.bottom()}, look);
      }
    }
  }
}

// Writes labels below the axis, each centered at its column, as many as fit without touching.
std::string axis_labels(const std::vector<std::pair<int, std::string>>& labels, int columns) {
  std::u32string row(static_cast<std::size_t>(columns), U' ');
  int free_from = 0;
  for (const auto& [at, label] : labels) {
    const std::u32string text = decoded(label);
    const int width = static_cast<int>(text.size());
    const int begin = std::clamp(at - width / 2, 0, std::max(columns - width, 0));
    if (begin < free_from || width > columns) continue;
    std::copy(text.begin(), text.end(), row.begin() + begin);
    free_from = begin + width + 1;
  }
  row.erase(row.find_last_not_of(U' ') + 1);
  return encoded(row);
}

}  // namespace

std::string terminal_plot(const Panel& panel, const TerminalStyle& style) {
  const Ranges ranges = ranges_of(panel);
  std::size_t drawn = 0;
  for (const Series& series : panel.series) drawn += series.y.empty() || is_faint(series) ? 0 : 1;
  const bool dots = style.unicode && (style.color || drawn <= 1);

  std::vector<std::string> above;
  if (!panel.title.empty()) above.push_back(cut(plain(panel.title, style.unicode), style.width));
  for (std::string& line : legend_lines(panel, style, dots)) above.push_back(std::move(line));
  const int rows = std::max(style.height - static_cast<int>(above.size()) - 4, kLowest);
  const Ticks y =
      axis_ticks(panel.y.scale, ranges.y.low, ranges.y.high, std::max(rows / kRowsPerTick, 2), panel.y.units);
  int label_columns = 0;
  for (const Tick& tick : y.major) {
    label_columns = std::max(label_columns, columns_of(plain(tick.label, style.unicode)));
  }
  const int columns = std::max(style.width - label_columns - 2, kNarrowest);
  std::string y_name = plain(panel.y.label, style.unicode);
  if (!y.note.empty()) y_name += (y_name.empty() ? "" : "  ") + plain(y.note, style.unicode);
  above.push_back(cut(y_name, style.width));

  Canvas canvas(columns, rows, dots);
  const Plane plane(panel, ranges, canvas.area());
  draw(canvas, panel, plane);

  const auto row_of = [&](double value) { return static_cast<int>(std::lround(plane.y(value))) / canvas.down(); };
  const auto column_of = [&](double value) { return static_cast<int>(std::lround(plane.x(value))) / canvas.across(); };
  std::string text;
  for (const std::string& line : above) {
    if (!line.empty()) text += line + '\n';
  }
  for (int row = 0; row < rows; ++row) {
    std::string label;
    for (const Tick& tick : y.major) {
      if (row_of(tick.value) == row) label = plain(tick.label, style.unicode);
    }
    const std::string axis = style.unicode ? (label.empty() ? "│" : "┤") : (label.empty() ? "|" : "+");
    text.append(static_cast<std::size_t>(label_columns - columns_of(label)), ' ');
    text += label + ' ' + axis + canvas.row(row, style.color) + '\n';
  }

  std::vector<std::pair<int, std::string>> labels;
  Ticks x;
  if (panel.x.categories.empty()) {
    x = axis_ticks(panel.x.scale, ranges.x.low, ranges.x.high, std::clamp(columns / 10, 2, 9), panel.x.units);
    for (const Tick& tick : x.major) labels.emplace_back(column_of(tick.value), plain(tick.label, style.unicode));
  } else {
    const int room = std::max(static_cast<int>(columns / (ranges.x.high - ranges.x.low)) - 1, 1);
    for (std::size_t i = 0; i < panel.x.categories.size(); ++i) {
      labels.emplace_back(column_of(static_cast<double>(i)), cut(plain(panel.x.categories[i], style.unicode), room));
    }
  }
  std::vector<bool> ticked(static_cast<std::size_t>(columns), false);
  for (const auto& [at, label] : labels) {
    if (at >= 0 && at < columns) ticked[static_cast<std::size_t>(at)] = true;
  }
  const std::string indent(static_cast<std::size_t>(label_columns + 1), ' ');
  text += indent + (style.unicode ? "└" : "+");
  for (const bool tick : ticked) text += style.unicode ? (tick ? "┬" : "─") : (tick ? "+" : "-");
  text += '\n' + indent + ' ' + axis_labels(labels, columns) + '\n';
  std::string x_name = plain(panel.x.label, style.unicode);
  if (!x.note.empty()) x_name += (x_name.empty() ? "" : "  ") + plain(x.note, style.unicode);
  if (!x_name.empty()) text += indent + ' ' + axis_labels({{columns / 2, cut(x_name, columns)}}, columns) + '\n';
  return text;
}

std::string terminal_plot(const std::vector<Series>& series, int width, int height) {
  Panel panel;
  panel.series = series;
  return terminal_plot(panel, {.width = width, .height = height});
}

}  // namespace qdelta::plot
