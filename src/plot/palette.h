// Colors that people with any of the three color blindnesses can tell apart.
#pragma once

#include <array>
#include <string_view>

namespace qdelta::plot {

// Okabe and Ito's, less the yellow that white paper swallows, plus a brown. Under simulated protanopia, deuteranopia
// and tritanopia (Machado et al. 2009) every two of them differ by at least 16 in CIE Lab.
inline constexpr std::array<std::string_view, 8> kPalette = {
    "#0072b2",  // blue
    "#d55e00",  // vermilion
    "#009e73",  // green
    "#cc79a7",  // pink
    "#e69f00",  // orange
    "#56b4e9",  // sky
    "#333333",  // black
    "#7f4f24",  // brown
};
// The nearest of the 256 colors of terminals.
inline constexpr std::array<int, 8> kTerminalPalette = {32, 166, 36, 175, 178, 74, 245, 94};

// Of heat maps, from the lowest value to the highest: ever darker, so that it reads in gray and to any eye.
inline constexpr std::array<std::array<double, 3>, 5> kHeat = {
    {{247, 251, 255}, {198, 219, 239}, {107, 174, 214}, {33, 113, 181}, {8, 48, 107}}};
inline constexpr double kDarkHeat = 0.55;  // from this level on, text in a cell is white

inline constexpr std::string_view kInk = "#222222";      // text
inline constexpr std::string_view kSoftInk = "#555555";  // numbers at the axes
inline constexpr std::string_view kAxisLine = "#777777";
inline constexpr std::string_view kGridLine = "#e4e4e4";
inline constexpr std::string_view kGuideLine = "#888888";
inline constexpr std::string_view kPaper = "#ffffff";

}  // namespace qdelta::plot
