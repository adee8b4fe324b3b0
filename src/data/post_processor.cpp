#include "data/post_processor.h"

#include "data/pipeline_limits.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr std::size_t kMostAdded = 4096;  // tokens, by all the steps of a sequence

// {"single": [{"SpecialToken": {"id": "<s>", ...}}, {"Sequence": {"id": "A", ...}}], "special_tokens": {"<s>":
// {"ids"}}}
Affixes read_template(const JsonAt& json, std::int32_t vocab_size) {
  json.only({"type", "single", "pair", "special_tokens"});
  Affixes affixes;
  bool text_seen = false;
  for (const JsonAt& piece : json.at("single").elements()) {
    piece.only({"SpecialToken", "Sequence"});
    if (piece.has("Sequence")) {
      if (text_seen || piece.at("Sequence").at("id").text() != "A") piece.unsupported("a text must come in once, as A");
      text_seen = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").at("id").text();
    const JsonAt tokens = json.at("special_tokens");
    if (!tokens.has(name.c_str())) tokens.corrupt("{} is missing", shown(name));
    for (const JsonAt& id : tokens.at(name.c_str()).at("ids").elements()) {
      (text_seen ? affixes.suffix : affixes.prefix).push_back(static_cast<std::int32_t>(id.integer(0, vocab_size - 1)));
    }
  }
  if (!text_seen) json.at("single").unsupported("the text itself does not come in");
  return affixes;
}

// ["</s>", 2]
std::int32_t named_id(const JsonAt& json, std::int32_t vocab_size) {
  const std::vector<JsonAt> pair = json.elements();
  if (pair.size() != 2) json.corrupt("must be a token and its id");
  return static_cast<std::int32_t>(pair[1].integer(0, vocab_size - 1));
}

}  // namespace

Affixes read_post_processor(const JsonAt& json, std::int32_t vocab_size) {
  if (json.is_null()) return {};
  const std::string type = json.at("type").text();
  if (type == "ByteLevel") {
    json.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {};  // it only moves offsets
  }
  if (type == "TemplateProcessing") return read_template(json, vocab_size);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    json.only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    return {{named_id(json.at("cls"), vocab_size)}, {named_id(json.at("sep"), vocab_size)}};
  }
  if (type == "Sequence") {
    json.only({"type", "processors"});
    Affixes all;
    const std::vector<JsonAt> steps = json.at("processors").elements();
    check_steps(json, steps.size());
    for (const JsonAt& step : steps) {
      const Affixes more = read_post_processor(step, vocab_size);
      all.prefix.insert(all.prefix.begin(), more.prefix.begin(), more.prefix.end());
      all.suffix.insert(all.suffix.end(), more.suffix.begin(), more.suffix.end());
      if (all.prefix.size() + all.suffix.size() > kMostAdded) json.unsupported("adds more than {} tokens", kMostAdded);
    }
    return all;
  }
  json.unsupported(
      "the post-processor {} is not supported; those that are: TemplateProcessing, ByteLevel, RobertaProcessing, "
      "BertProcessing, Sequence",
      shown(type));
}

}  // namespace qdelta
