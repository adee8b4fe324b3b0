#include "analyze/report.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "io/atomic_file.h"
#include "plot/png.h"
#include "plot/svg_writer.h"

namespace qdelta::analyze {
namespace {

namespace fs = std::filesystem;
using plot::xml_escaped;

// Figures bring white paper; in the dark their lightness is turned round and their colors are kept.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #222; --soft: #555; --paper: #fff; --line: #ddd; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --soft: #aaa; --paper: #151515; --line: #3a3a3a; }
  figure svg { filter: invert(0.92) hue-rotate(180deg); }
}
body { font: 16px/1.5 Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif; color: var(--ink);
  background: var(--paper); max-width: 1240px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
p, table, nav { max-width: 50rem; } figure { margin: 1rem 0; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } td { padding: 0.15rem 1.2rem 0.15rem 0; vertical-align: top; }
td:first-child { color: var(--soft); } section { border-top: 1px solid var(--line); }
.formula { font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 0.85rem; color: var(--soft); }
a { color: inherit; } nav a { display: inline-block; margin-right: 1rem; }
)";

std::string facts_html(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string html = "<table>\n";
  for (const auto& [name, value] : facts) {
    html += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", xml_escaped(name), xml_escaped(value));
  }
  return html + "</table>\n";
}

std::string files_html(const Section& section) {
  std::string html;
  for (const auto& [name, table] : section.tables) {
    html += fmt::format("{}<a href=\"{}.csv\">{}.csv</a>", html.empty() ? "" : ", ", name, name);
  }
  return html;
}

std::string section_html(const Section& section) {
  return fmt::format(
      "<section id=\"{0}\">\n<h2>{1}</h2>\n<figure>\n{2}</figure>\n{3}<p>{4}</p>\n<p>{5}</p>\n<p "
      "class=\"formula\">{6}</p>\n<p>The numbers: {7}</p>\n</section>\n",
      section.id, xml_escaped(section.title), plot::svg(section.figure), facts_html(section.facts),
      xml_escaped(section.shows), xml_escaped(section.reading), xml_escaped(section.formula), files_html(section));
}

}  // namespace

std::string report_html(const Analysis& analysis, const ReportHead& head) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"/>\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n"
      "<h1>{0}</h1>\n{2}",
      xml_escaped(head.title), kStyle, facts_html(head.facts));
  html += "<nav>";
  for (const Section& section : analysis.sections) {
    html += fmt::format("<a href=\"#{}\">{}</a>\n", section.id, xml_escaped(section.title));
  }
  html += "</nav>\n";
  for (const Section& section : analysis.sections) html += section_html(section);
  if (!analysis.left_out.empty()) {
    html += "<section id=\"left_out\">\n<h2>Left out</h2>\n<p>What says nothing about this model:</p>\n";
    std::vector<std::pair<std::string, std::string>> rows;
    for (const LeftOut& left_out : analysis.left_out) rows.emplace_back(left_out.title, left_out.reason);
    html += facts_html(rows) + "</section>\n";
  }
  return html + "</body>\n</html>\n";
}

Written write_report(const Analysis& analysis, const ReportHead& head, const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(Status::io, "cannot create {}: {}", folder, error.message());
  Written written;
  written.png = plot::can_write_png();
  written.files = {"report.html"};
  const auto path = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  for (const Section& section : analysis.sections) {
    for (const auto& [name, table] : section.tables) {
      write_whole(path(name + ".csv"), table.text());
      written.files.push_back(name + ".csv");
    }
    const std::string svg = plot::svg(section.figure);
    write_whole(path(section.id + ".svg"), svg);
    written.files.push_back(section.id + ".svg");
    if (!written.png) continue;
    plot::write_png(svg, path(section.id + ".png"));
    written.files.push_back(section.id + ".png");
  }
  write_whole(path("report.html"), report_html(analysis, head));
  return written;
}

}  // namespace qdelta::analyze
