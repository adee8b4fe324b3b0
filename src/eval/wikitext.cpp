#include "eval/wikitext.h"

#include <algorithm>

#include "eval/data_file.h"
#include "eval/python_text.h"
#include "io/untrusted_text.h"

namespace qdelta::eval {
namespace {

// White space out from between the ends of (...), "..." and the like.
std::string tightened(std::string_view text, char open, char close) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(open); at != std::string_view::npos; at = text.find(open, done)) {
    const std::size_t end = text.find(close, at + 1);
    if (end == std::string_view::npos) break;
    out += text.substr(done, at + 1 - done);
    out += stripped(text.substr(at + 1, end - at - 1));
    out += close;
    done = end + 1;
  }
  out += text.substr(done);
  return out;
}

// The harness means to close up a quote before a number, but its pattern has slashes at both ends and its replacement
// is taken literally. Where the pattern does occur, this is what becomes of it.
std::string with_slashed_quotes(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const bool found =
        rest.size() >= 5 && rest.starts_with("/' ") && rest[3] >= '0' && rest[3] <= '9' && rest[4] == '/';
    out += found ? std::string_view("/'[0-9]/") : rest.substr(0, 1);
    at += found ? 5 : 1;
  }
  return out;
}

}  // namespace

std::string wikitext_mended(std::string_view page) {
  std::string text = with_slashed_quotes(replaced(page, "s '", "s'"));
  const auto replace = [&text](std::string_view from, std::string_view to) { text = replaced(text, from, to); };
  replace(" @-@ ", "-");
  replace(" @,@ ", ",");
  replace(" @.@ ", ".");
  for (const char mark : {':', ';', '.', '!', '?', ','}) replace(std::string{' ', mark, ' '}, std::string{mark, ' '});
  text = tightened(text, '(', ')');
  text = tightened(text, '[', ']');
  text = tightened(text, '{', '}');
  text = tightened(text, '"', '"');
  text = tightened(text, '\'', '\'');
  replace("= = = =", "====");
  replace("= = =", "===");
  replace("= =", "==");
  replace(" \u00b0 ", "\u00b0");
  replace(" \n", "\n");
  replace("\n ", "\n");
  replace(" N ", " 1 ");
  replace(" 's", "'s");
  return text;
}

std::vector<std::string> wikitext_pages(std::string_view text) {
  std::vector<std::string> pages;
  std::size_t page = 0;  // where it begins
  const auto add = [&](std::size_t end) {
    const std::string_view all = text.substr(page, end - page);
    if (!stripped(all).empty()) pages.emplace_back(all);
  };
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string closed = replaced(replaced(text.substr(begin, end - begin), "= = =", "==="), "= =", "==");
    const std::string_view line = stripped(closed);
    if (line.starts_with("= ") && line.ends_with(" =")) {
      if (begin > page) add(begin - 1);
      page = begin;
    }
    begin = end + 1;
  }
  add(text.size());
  return pages;
}

namespace {

std::vector<std::string> some_pages(const std::string& text, const std::string& path) {
  std::vector<std::string> pages = wikitext_pages(text);
  if (pages.empty()) fail(Status::corrupt, "{}: there are no pages in it", path);
  return pages;
}

}  // namespace

std::vector<std::string> read_wikitext(const std::string& path) {
  std::vector<std::string> pages;
  if (path.find(".json") != std::string::npos) {
    // A page each, or a line each.
    std::string lines;
    for (const Record& record : read_records(path)) {
      const JsonAt at = record.at();
      if (at.has("page")) {
        pages.push_back(text_at(at, "page"));
      } else {
        lines += text_at(at, "text");
      }
    }
    return lines.empty() ? pages : some_pages(lines, path);
  }
  const std::string text = read_whole(path);
  if (const auto at = first_invalid_utf8(text)) fail(Status::corrupt, "{}: not valid UTF-8 at byte {}", path, *at);
  return some_pages(text, path);
}

WikitextTask::WikitextTask(std::string name, const RequestEncoder& encoder, std::vector<std::string> pages)
    : LikelihoodTask(std::move(name), {{"word_perplexity", Aggregation::weighted_perplexity},
                                       {"byte_perplexity", Aggregation::weighted_perplexity},
                                       {"bits_per_byte", Aggregation::bits_per_byte}}),
      pages_(std::move(pages)) {
  for (const std::string& page : pages_) add(encoder.rolling(wikitext_mended(page)));
}

nlohmann::json WikitextTask::shown(std::int64_t example) const {
  return {{"text", wikitext_mended(pages_[static_cast<std::size_t>(example)])}};
}

nlohmann::json WikitextTask::values(std::int64_t example, std::span<const Likelihood> likelihoods) const {
  const std::string& page = pages_[static_cast<std::size_t>(example)];
  double sum = 0;
  for (const Likelihood& window : likelihoods) sum += window.log_likelihood;
  const nlohmann::json by_words{sum, split_count(page)};
  const nlohmann::json by_bytes{sum, page.size()};
  return {{"word_perplexity", by_words}, {"byte_perplexity", by_bytes}, {"bits_per_byte", by_bytes}};
}

}  // namespace qdelta::eval
