// The elements of an SVG file, as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plot/geometry.h"
#include "plot/text.h"

namespace qdelta::plot {

// Fit to stand in an element or an attribute: the five characters that XML reserves, and those it forbids.
[[nodiscard]] std::string xml_escaped(std::string_view text);
// A coordinate: two digits behind the point at most.
[[nodiscard]] std::string coordinate(double value);

struct TextStyle {
  enum class Anchor { start, middle, end };
  double size = 12;
  std::string_view color;
  Anchor anchor = Anchor::start;
  Weight weight = Weight::normal;
  double turn = 0;  // degrees, clockwise around the position
};

struct LineStyle {
  std::string_view color;
  double width = 1;
  double opacity = 1;
  std::string_view dash;  // as stroke-dasharray; empty: solid
};

class SvgWriter {
 public:
  SvgWriter(double width, double height, std::string_view title);

  void rectangle(const Rectangle& box, std::string_view fill, double opacity = 1, std::string_view stroke = {});
  void line(const Point& from, const Point& to, const LineStyle& style);
  // Several lines in one element.
  void lines(const std::vector<std::vector<Point>>& pieces, const LineStyle& style);
  void polygon(const std::vector<Point>& corners, std::string_view fill, double opacity, std::string_view stroke = {});
  void circle(const Point& center, double radius, std::string_view fill, double opacity, std::string_view stroke = {});
  // The baseline of the text is at the position. Raised digits are set smaller and higher, whatever font there is.
  void text(const Point& at, std::string_view text, const TextStyle& style);

  // What is drawn until clip_end() shows only inside the box.
  void clip_begin(const Rectangle& box);
  void clip_end();

  [[nodiscard]] std::string finished() const;

 private:
  std::string body_;
};

}  // namespace qdelta::plot
