#include "plot/text.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "core/utf8.h"

namespace qdelta::plot {
namespace {

constexpr char32_t kReplacement = 0xfffd;
constexpr char32_t kEllipsis = 0x2026;

// Advance widths of the characters from space to tilde in DejaVu Sans, in thousandths of the font size.
constexpr std::array<int, 95> kWidths = {
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361,  318, 337, 636, 636, 636,
    636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632,
    575, 775, 752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635,  611, 732, 684, 989, 685,
    611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352,  635, 634, 278, 278, 579,
    278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592,  525, 636, 337, 636, 838};
constexpr double kBold = 1.12;  // how much wider bold text is

// In the order of the digits, then the minus sign.
constexpr std::array<char32_t, 11> kRaised = {0x2070, 0xb9,   0xb2,   0xb3,   0x2074, 0x2075,
                                              0x2076, 0x2077, 0x2078, 0x2079, 0x207b};

double width_of(char32_t c) {
  if (c >= 0x20 && c < 0x7f) return kWidths[c - 0x20] / 1000.0;
  if (plain_of_raised(c) != 0) return 0.48;
  if (c >= 0x300 && c < 0x370) return 0;   // marks on the letter before
  if (c >= 0x1100 && c != kReplacement) {  // beyond the alphabets: arrows and signs, then ideographs
    return c >= 0x2e80 ? 1.0 : 0.85;
  }
  return 0.7;
}

double width_of(std::u32string_view characters, double font_size, Weight weight) {
  double width = 0;
  for (const char32_t c : characters) width += width_of(c);
  return width * font_size * (weight == Weight::bold ? kBold : 1);
}

}  // namespace

std::u32string decoded(std::string_view text) {
  std::u32string characters;
  while (!text.empty()) {
    const utf8::Step next = utf8::step(text);
    const bool valid = next.kind == utf8::Step::Kind::character;
    characters.push_back(valid ? next.code : kReplacement);
    text.remove_prefix(valid ? next.length : 1);
  }
  return characters;
}

std::string encoded(std::u32string_view characters) {
  std::string text;
  for (const char32_t c : characters) utf8::append(text, c);
  return text;
}

double text_width(std::string_view text, double font_size, Weight weight) {
  return width_of(decoded(text), font_size, weight);
}

std::string shortened(std::string_view text, double font_size, double width) {
  const std::u32string all = decoded(text);
  if (width_of(all, font_size, Weight::normal) <= width) return encoded(all);
  // Takes characters from the front and the back in turn for as long as they fit beside the ellipsis.
  std::size_t front = 0;
  std::size_t back = 0;
  double used = width_of(kEllipsis) * font_size;
  while (front + back < all.size()) {
    const bool take_front = front <= back;
    const double next = width_of(take_front ? all[front] : all[all.size() - 1 - back]) * font_size;
    if (used + next > width) break;
    used += next;
    (take_front ? front : back) += 1;
  }
  return encoded(all.substr(0, front) + kEllipsis + all.substr(all.size() - back));
}

std::vector<std::string> wrapped(std::string_view text, double font_size, Weight weight, double width) {
  std::vector<std::string> lines;
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const double factor = weight == Weight::bold ? kBold : 1;
    const std::string word = shortened(text.substr(at, end - at), font_size * factor, width);
    at = end + 1;
    const std::string longer = line.empty() ? word : line + ' ' + word;
    if (text_width(longer, font_size, weight) <= width || line.empty()) {
      line = longer;
    } else {
      lines.push_back(line);
      line = word;
    }
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

std::string power_of_ten(int exponent) {
  std::u32string raised;
  for (const char c : fmt::format("{}", exponent)) {
    raised.push_back(kRaised[c == '-' ? 10 : static_cast<std::size_t>(c - '0')]);
  }
  return "10" + encoded(raised);
}

char plain_of_raised(char32_t character) noexcept {
  for (std::size_t i = 0; i < kRaised.size(); ++i) {
    if (kRaised[i] == character) return i == 10 ? '-' : static_cast<char>('0' + i);
  }
  return 0;
}

}  // namespace qdelta::plot
