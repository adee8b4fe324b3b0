// Text in figures: widths, cuts and line breaks.
#include "plot/text.h"

#include <gtest/gtest.h>

namespace qdelta::plot {
namespace {

TEST(PlotText, DecodesAndEncodes) {
  const std::string text = "aλ€😀";
  EXPECT_EQ(decoded(text), U"aλ€😀");
  EXPECT_EQ(encoded(decoded(text)), text);
  EXPECT_EQ(decoded("a\xff\xc3"), U"a\ufffd\ufffd");
}

TEST(PlotText, WidthsGrowWithTheTextAndItsSize) {
  EXPECT_EQ(text_width("", 12), 0);
  EXPECT_DOUBLE_EQ(text_width("00", 10), 2 * 6.36);
  EXPECT_LT(text_width("iii", 12), text_width("mmm", 12));
  EXPECT_LT(text_width("abc", 12), text_width("abc", 12, Weight::bold));
  EXPECT_DOUBLE_EQ(text_width("abc", 24), 2 * text_width("abc", 12));
  EXPECT_LT(text_width("10⁻⁴", 12), text_width("10−4", 12));
}

TEST(PlotText, WhatFitsIsNotCut) { EXPECT_EQ(shortened("loss", 12, 1000), "loss"); }

TEST(PlotText, CutsInTheMiddleToTheWidth) {
  const std::string name = "qdelta-340M-fineweb-edu-seed-1";
  for (double width = 20; width < 250; width += 7) {
    const std::string cut = shortened(name, 12, width);
    EXPECT_LE(text_width(cut, 12), width);
    if (width < 150) {
      EXPECT_NE(cut.find("…"), std::string::npos);
    }
  }
  const std::string cut = shortened(name, 12, 100);
  EXPECT_TRUE(cut.starts_with("qdelt")) << cut;
  EXPECT_TRUE(cut.ends_with("d-1")) << cut;
}

TEST(PlotText, BreaksAtSpaces) {
  const std::vector<std::string> lines = wrapped("one two three four five", 12, Weight::normal, 70);
  ASSERT_GT(lines.size(), 1U);
  std::string joined;
  for (const std::string& line : lines) {
    EXPECT_LE(text_width(line, 12), 70);
    joined += (joined.empty() ? "" : " ") + line;
  }
  EXPECT_EQ(joined, "one two three four five");
  EXPECT_TRUE(wrapped("", 12, Weight::normal, 70).empty());
  EXPECT_LE(text_width(wrapped("Donaudampfschifffahrtsgesellschaft", 12, Weight::bold, 70)[0], 12, Weight::bold), 70);
}

TEST(PlotText, PowersOfTen) {
  EXPECT_EQ(power_of_ten(-4), "10⁻⁴");
  EXPECT_EQ(power_of_ten(123), "10¹²³");
  EXPECT_EQ(plain_of_raised(U'⁻'), '-');
  EXPECT_EQ(plain_of_raised(U'²'), '2');
  EXPECT_EQ(plain_of_raised(U'2'), 0);
}

}  // namespace
}  // namespace qdelta::plot
