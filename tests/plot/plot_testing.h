// What the tests of figures share: a reader of SVG strict enough to notice a broken file, and boxes around its texts.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "plot/geometry.h"
#include "plot/text.h"

namespace qdelta::plot::testing {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // of itself and all within, references resolved

  [[nodiscard]] bool has(const std::string& key) const { return attributes.contains(key); }
  [[nodiscard]] std::string attribute(const std::string& key) const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? "" : found->second;
  }
  [[nodiscard]] double number(const std::string& key) const { return std::stod(attribute(key)); }
};

// All elements in the order they begin. Throws std::runtime_error where the text is not well-formed XML (of the kind
// that figures use: no comments, no CDATA).
class SvgReader {
 public:
  explicit SvgReader(std::string_view text) : text_(text) {
    while (at_ < text_.size()) {
      if (text_[at_] == '<') {
        tag();
      } else {
        characters();
      }
    }
    if (!open_.empty()) throw std::runtime_error("not closed: " + elements_[open_.back()].name);
  }
  [[nodiscard]] std::vector<Element> elements() const { return elements_; }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(what + " at " + std::to_string(at_) + ": " + std::string(text_.substr(at_, 60)));
  }
  char next() {
    if (at_ >= text_.size()) fail("the file ends");
    return text_[at_++];
  }
  std::string name() {
    std::string result;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '-')) {
      result.push_back(next());
    }
    if (result.empty()) fail("no name");
    return result;
  }
  void spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  std::string reference() {
    std::string entity;
    for (char c = next(); c != ';'; c = next()) entity.push_back(c);
    const std::map<std::string, std::string> known = {
        {"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"#39", "'"}};
    if (!known.contains(entity)) fail("unknown reference " + entity);
    return known.at(entity);
  }
  void characters() {
    const char c = next();
    if (c == '>') fail("a > outside a tag");
    const std::string piece = c == '&' ? reference() : std::string(1, c);
    if (open_.empty() && c != '\n') fail("text outside the root");
    for (const std::size_t index : open_) elements_[index].text += piece;
  }
  void tag() {
    ++at_;
    if (text_[at_] == '/') {
      ++at_;
      const std::string closing = name();
      if (next() != '>') fail("a broken end tag");
      if (open_.empty() || elements_[open_.back()].name != closing) fail("the wrong end tag");
      open_.pop_back();
      return;
    }
    if (open_.empty() && !elements_.empty()) fail("a second root");
    Element element;
    element.name = name();
    for (spaces(); text_[at_] != '>' && text_[at_] != '/'; spaces()) {
      const std::string key = name();
      if (next() != '=' || next() != '"') fail("an attribute without a value");
      std::string value;
      for (char c = next(); c != '"'; c = next()) {
        if (c == '<') fail("a < in an attribute");
        value += c == '&' ? reference() : std::string(1, c);
      }
      if (!element.attributes.emplace(key, value).second) fail("an attribute twice");
    }
    elements_.push_back(std::move(element));
    if (next() == '>') {
      open_.push_back(elements_.size() - 1);
    } else if (next() != '>') {
      fail("a broken tag");
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<Element> elements_;
  std::vector<std::size_t> open_;
};

inline std::vector<Element> read_svg(std::string_view text) { return SvgReader(text).elements(); }

inline std::vector<Element> named(const std::vector<Element>& elements, const std::string& name) {
  std::vector<Element> found;
  for (const Element& element : elements) {
    if (element.name == name) found.push_back(element);
  }
  return found;
}

// Where a text is, turned ones included where they are upright.
inline Rectangle box_of(const Element& text) {
  const double size = text.number("font-size");
  const double width = text_width(text.text, size, text.has("font-weight") ? Weight::bold : Weight::normal);
  const std::string anchor = text.attribute("text-anchor");
  const double before = anchor == "middle" ? width / 2 : anchor == "end" ? width : 0;
  const double x = text.number("x");
  const double y = text.number("y");
  const double ascent = 0.76 * size;  // of letters and digits
  if (text.attribute("transform").starts_with("rotate(-90 ")) return {x - ascent, y - (width - before), ascent, width};
  return {x - before, y - ascent, width, ascent};
}

// No text is cut by the edge or lies on another, and all numbers are numbers.
inline void expect_tidy(const std::string& svg, const std::string& what = "") {
  const std::vector<Element> elements = read_svg(svg);
  const double width = elements.front().number("width");
  const double height = elements.front().number("height");
  std::vector<std::pair<Rectangle, std::string>> boxes;
  for (const Element& element : elements) {
    for (const auto& [key, value] : element.attributes) {
      EXPECT_EQ(value.find("nan"), std::string::npos) << what << ": " << element.name << " " << key << "=" << value;
      EXPECT_EQ(value.find("inf"), std::string::npos) << what << ": " << element.name << " " << key << "=" << value;
    }
    if (element.name != "text" || element.attribute("transform").starts_with("rotate(-34")) continue;
    const Rectangle box = box_of(element);
    EXPECT_GE(box.x, -0.5) << what << ": " << element.text;
    EXPECT_GE(box.y, -0.5) << what << ": " << element.text;
    EXPECT_LE(box.right(), width + 0.5) << what << ": " << element.text;
    EXPECT_LE(box.bottom(), height + 0.5) << what << ": " << element.text;
    for (const auto& [other, text] : boxes) {
      const bool apart =
          box.right() <= other.x || other.right() <= box.x || box.bottom() <= other.y || other.bottom() <= box.y;
      EXPECT_TRUE(apart) << what << ": '" << element.text << "' lies on '" << text << "'";
    }
    boxes.emplace_back(box, element.text);
  }
}

}  // namespace qdelta::plot::testing
