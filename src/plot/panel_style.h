// Sizes of the texts of a panel and of the room around them, in pixels.
#pragma once

namespace qdelta::plot {

inline constexpr double kTitleText = 14;
inline constexpr double kTitleLine = 19;
inline constexpr double kLabelText = 13;
inline constexpr double kLabelGap = 9;
inline constexpr double kTickText = 12;
inline constexpr double kTickLine = 14;
inline constexpr double kTickLength = 4;
inline constexpr double kTickGap = 4;
inline constexpr double kSmallText = 11;
inline constexpr double kColorBarGap = 8;  // of a heat map
inline constexpr double kColorBarWidth = 12;
inline constexpr double kColorBarRoom = 72;  // with its numbers
inline constexpr double kEdge = 12;          // around everything

}  // namespace qdelta::plot
