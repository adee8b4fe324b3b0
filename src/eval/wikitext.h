// WikiText: how well whole pages are predicted.
//
//   word_perplexity   exp(-sum log p / words)      words and bytes of the page as it stands in the data;
//   byte_perplexity   exp(-sum log p / bytes)      what is predicted is the page with its spacing mended
//   bits_per_byte     -sum log p / bytes / log 2
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "eval/task.h"

namespace qdelta::eval {

// The pages of the raw file: each begins with its title, a line such as " = Robert Boulter = ".
[[nodiscard]] std::vector<std::string> wikitext_pages(std::string_view text);
// A page as people would write it: without the spaces that WikiText has around punctuation.
[[nodiscard]] std::string wikitext_mended(std::string_view page);
// Out of a raw file, or out of records with a member "page".
[[nodiscard]] std::vector<std::string> read_wikitext(const std::string& path);

class WikitextTask final : public LikelihoodTask {
 public:
  WikitextTask(std::string name, const RequestEncoder& encoder, std::vector<std::string> pages);

 private:
  [[nodiscard]] nlohmann::json shown(std::int64_t example) const override;
  [[nodiscard]] nlohmann::json values(std::int64_t example, std::span<const Likelihood> likelihoods) const override;

  std::vector<std::string> pages_;
};

}  // namespace qdelta::eval
