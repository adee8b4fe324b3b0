#include "plot/svg_writer.h"

#include <fmt/format.h>

#include <cmath>

#include "plot/palette.h"

namespace qdelta::plot {
namespace {

constexpr const char* kFonts = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";

std::string opacity_text(const char* name, double opacity) {
  return opacity >= 1 ? "" : fmt::format(" {}=\"{}\"", name, coordinate(opacity));
}

std::string stroke_text(std::string_view stroke) {
  return stroke.empty() ? "" : fmt::format(" stroke=\"{}\" stroke-width=\"1\"", stroke);
}

std::string style_text(const LineStyle& style) {
  std::string text =
      fmt::format(" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"", style.color, coordinate(style.width));
  text += opacity_text("stroke-opacity", style.opacity);
  if (style.dash.empty()) {
    text += " stroke-linecap=\"round\"";
  } else {
    text += fmt::format(" stroke-dasharray=\"{}\"", style.dash);
  }
  return text + " stroke-linejoin=\"round\"";
}

std::string points_text(const std::vector<Point>& points) {
  std::string text;
  for (const Point& point : points) {
    text += fmt::format("{}{},{}", text.empty() ? "" : " ", coordinate(point.x), coordinate(point.y));
  }
  return text;
}

// Runs of raised characters become smaller ones on a higher line: not every font has them all.
std::string with_raised(std::string_view text) {
  std::string result;
  const std::u32string all = decoded(text);
  for (std::size_t at = 0; at < all.size();) {
    const bool raised = plain_of_raised(all[at]) != 0;
    std::size_t end = at;
    while (end < all.size() && (plain_of_raised(all[end]) != 0) == raised) ++end;
    if (raised) {
      result += "<tspan dy=\"-0.42em\" font-size=\"72%\">";
      for (std::size_t i = at; i < end; ++i) {
        const char digit = plain_of_raised(all[i]);
        result += digit == '-' ? std::string("−") : std::string(1, digit);
      }
      result += "</tspan>";
    } else {
      // Back down by what the smaller ones went up, 0.42 of 72%. Some readers drop a space that begins a tspan.
      const bool back = at > 0;
      const bool space = back && all[at] == U' ';
      const std::string plain = xml_escaped(encoded(all.substr(at + (space ? 1 : 0), end - at - (space ? 1 : 0))));
      result += back ? fmt::format("<tspan{} dy=\"0.3em\">{}</tspan>", space ? " dx=\"0.3em\"" : "", plain) : plain;
    }
    at = end;
  }
  return result;
}

}  // namespace

std::string xml_escaped(std::string_view text) {
  std::string result;
  for (const char32_t c : decoded(text)) {
    switch (c) {
      case U'&':
        result += "&amp;";
        break;
      case U'<':
        result += "&lt;";
        break;
      case U'>':
        result += "&gt;";
        break;
      case U'"':
        result += "&quot;";
        break;
      case U'\'':
        result += "&#39;";
        break;
      default: {
        const bool forbidden = (c < 0x20 && c != U'\t' && c != U'\n' && c != U'\r') || c == 0xfffe || c == 0xffff;
        const char32_t shown = forbidden ? char32_t{0xfffd} : c;
        result += encoded({&shown, 1});
      }
    }
  }
  return result;
}

std::string coordinate(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

SvgWriter::SvgWriter(double width, double height, std::string_view title) {
  const std::string w = coordinate(width);
  const std::string h = coordinate(height);
  body_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\" "
      "font-family=\"{2}\">\n",
      w, h, kFonts);
  if (!title.empty()) body_ += fmt::format("<title>{}</title>\n", xml_escaped(title));
  // A page may be dark; the figure brings its own paper.
  rectangle({0, 0, width, height}, kPaper);
}

void SvgWriter::rectangle(const Rectangle& box, std::string_view fill, double opacity, std::string_view stroke) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"{}{}/>\n", coordinate(box.x),
                       coordinate(box.y), coordinate(box.width), coordinate(box.height), fill,
                       opacity_text("fill-opacity", opacity), stroke_text(stroke));
}

void SvgWriter::line(const Point& from, const Point& to, const LineStyle& style) {
  body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"{}\"{}",
                       coordinate(from.x), coordinate(from.y), coordinate(to.x), coordinate(to.y), style.color,
                       coordinate(style.width), opacity_text("stroke-opacity", style.opacity));
  if (!style.dash.empty()) body_ += fmt::format(" stroke-dasharray=\"{}\"", style.dash);
  body_ += "/>\n";
}

void SvgWriter::lines(const std::vector<std::vector<Point>>& pieces, const LineStyle& style) {
  std::string path;
  for (const std::vector<Point>& piece : pieces) {
    if (piece.size() < 2) continue;
    for (std::size_t i = 0; i < piece.size(); ++i) {
      path += fmt::format("{}{} {}", i == 0 ? "M" : "L", coordinate(piece[i].x), coordinate(piece[i].y));
    }
  }
  if (!path.empty()) body_ += fmt::format("<path d=\"{}\"{}/>\n", path, style_text(style));
}

void SvgWriter::polygon(const std::vector<Point>& corners, std::string_view fill, double opacity,
                        std::string_view stroke) {
  body_ += fmt::format("<polygon points=\"{}\" fill=\"{}\"{}{}/>\n", points_text(corners), fill,
                       opacity_text("fill-opacity", opacity), stroke_text(stroke));
}

void SvgWriter::circle(const Point& center, double radius, std::string_view fill, double opacity,
                       std::string_view stroke) {
  body_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"{}{}/>\n", coordinate(center.x),
                       coordinate(center.y), coordinate(radius), fill, opacity_text("fill-opacity", opacity),
                       stroke_text(stroke));
}

void SvgWriter::text(const Point& at, std::string_view text, const TextStyle& style) {
  const std::string x = coordinate(at.x);
  const std::string y = coordinate(at.y);
  body_ +=
      fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\"", x, y, coordinate(style.size), style.color);
  if (style.anchor != TextStyle::Anchor::start) {
    body_ += fmt::format(" text-anchor=\"{}\"", style.anchor == TextStyle::Anchor::middle ? "middle" : "end");
  }
  if (style.weight == Weight::bold) body_ += " font-weight=\"bold\"";
  if (style.turn != 0) body_ += fmt::format(" transform=\"rotate({} {} {})\"", coordinate(style.turn), x, y);
  body_ += fmt::format(">{}</text>\n", with_raised(text));
}

// A nested svg element clips by itself and needs no name, so that two figures can stand in one page.
void SvgWriter::clip_begin(const Rectangle& box) {
  const std::string x = coordinate(box.x);
  const std::string y = coordinate(box.y);
  const std::string w = coordinate(box.width);
  const std::string h = coordinate(box.height);
  body_ += fmt::format(
      "<svg x=\"{0}\" y=\"{1}\" width=\"{2}\" height=\"{3}\" viewBox=\"{0} {1} {2} {3}\" overflow=\"hidden\">\n", x, y,
      w, h);
}

void SvgWriter::clip_end() { body_ += "</svg>\n"; }

std::string SvgWriter::finished() const { return body_ + "</svg>\n"; }

}  // namespace qdelta::plot
