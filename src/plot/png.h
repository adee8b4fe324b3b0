// Pictures of figures for where SVG cannot go: slides, chats, papers.
//
// librsvg draws them. It is found when the first picture is asked for, not linked: it would bring 48 shared libraries
// and 50 MB to a program that most often draws nothing, and slow down every start.
#pragma once

#include <string>
#include <string_view>

namespace qdelta::plot {

// Whether this machine has the library (Debian: librsvg2-2).
[[nodiscard]] bool can_write_png();

// Draws an SVG file's text `scale` times as large as it says, whole or not at all. Throws Error(unsupported) where
// there is no library, Error(invalid_argument) where the text is no drawing, Error(io).
void write_png(std::string_view svg, const std::string& path, double scale = 2);

}  // namespace qdelta::plot
