// Text in figures: how wide it will be, how to make it fit, and numbers raised as exponents.
//
// Which font a viewer has is not known here. Widths are those of DejaVu Sans, the widest of the usual ones, so that
// what fits by this measure fits everywhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace qdelta::plot {

enum class Weight { normal, bold };

// The characters of UTF-8 text; bytes that are none become U+FFFD.
[[nodiscard]] std::u32string decoded(std::string_view text);
[[nodiscard]] std::string encoded(std::u32string_view characters);

// In pixels for a font of that size.
[[nodiscard]] double text_width(std::string_view text, double font_size, Weight weight = Weight::normal);
// The text, its middle replaced by an ellipsis where it is wider: names of runs differ at both ends.
[[nodiscard]] std::string shortened(std::string_view text, double font_size, double width);
// Broken at spaces into lines that fit; a word that is wider than a line is shortened.
[[nodiscard]] std::vector<std::string> wrapped(std::string_view text, double font_size, Weight weight, double width);

// 10^exponent as text: "10⁻⁴".
[[nodiscard]] std::string power_of_ten(int exponent);
// The plain character behind a raised one, 0 for all others.
[[nodiscard]] char plain_of_raised(char32_t character) noexcept;

}  // namespace qdelta::plot
