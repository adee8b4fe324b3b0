// An analysis as files: a CSV for each table, an SVG and a PNG for each figure, and one page with all of it that needs
// nothing beside itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analyze/analysis.h"

namespace qdelta::analyze {

struct ReportHead {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;  // about the model and the text
};

struct Written {
  std::vector<std::string> files;  // names in the folder, the report first
  bool png = true;                 // false: this machine cannot draw them
};

// Into a folder, which is made; each file is replaced whole.
Written write_report(const Analysis& analysis, const ReportHead& head, const std::string& folder);

[[nodiscard]] std::string report_html(const Analysis& analysis, const ReportHead& head);

}  // namespace qdelta::analyze
