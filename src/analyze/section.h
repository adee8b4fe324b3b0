// What an analysis hands to the report: a figure, tables, and words.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/csv.h"
#include "plot/figure.h"

namespace qdelta::analyze {

struct Section {
  std::string id;  // of its files
  std::string title;
  std::string shows;                                       // what is drawn
  std::string reading;                                     // how to read it
  std::string formula;                                     // in plain characters
  std::vector<std::pair<std::string, std::string>> facts;  // a name and what was measured
  plot::Figure figure;
  std::vector<std::pair<std::string, Csv>> tables;  // file names without .csv
};

// An analysis that says nothing about this model, and why.
struct LeftOut {
  std::string title, reason;
};

}  // namespace qdelta::analyze
