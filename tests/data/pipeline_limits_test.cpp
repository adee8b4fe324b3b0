// Files that would exhaust the stack, the memory or the patience: refused, when they are read or when they run.
#include "data/pipeline_limits.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/json_tokenizer.h"
#include "data/tokenizer.h"
#include "data_testing.h"

namespace qdelta {
namespace {

using nlohmann::json;
using testing::expect_error;
using Ids = std::vector<std::int32_t>;

// Where a tokenizer.json has a pipeline, what its sequence is called there, and a step that does nothing to "ab".
struct Pipeline {
  const char* part;
  const char* members;
  json idle;
};
std::vector<Pipeline> pipelines() {
  return {{"normalizer", "normalizers", {{"type", "NFC"}}},
          {"pre_tokenizer", "pretokenizers", {{"type", "WhitespaceSplit"}}},
          {"decoder", "decoders", {{"type", "Fuse"}}},
          {"post_processor", "processors", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}}};
}

json file_of(const char* part, const json& pipeline) {
  json file = {{"added_tokens", json::array()},
               {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}}};
  file[part] = pipeline;
  return file;
}
std::unique_ptr<Tokenizer> make(const char* part, const json& pipeline) {
  return make_json_tokenizer(file_of(part, pipeline).dump(), "label", {}, {});
}
json sequence(const Pipeline& pipeline, const std::vector<json>& steps) {
  return {{"type", "Sequence"}, {pipeline.members, steps}};
}

TEST(PipelineLimits, StepsOfASequence) {
  for (const Pipeline& pipeline : pipelines()) {
    const auto long_as_may_be = make(pipeline.part, sequence(pipeline, std::vector<json>(kMostSteps, pipeline.idle)));
    EXPECT_EQ(long_as_may_be->encode("ab"), Ids{2}) << pipeline.part;
    EXPECT_EQ(long_as_may_be->decode(Ids{2}), "ab") << pipeline.part;
    for (const std::size_t steps : {kMostSteps + 1, std::size_t{100'000}}) {
      expect_error(Status::unsupported, {"label: ", pipeline.part, "more than 256 steps"},
                   [&] { return make(pipeline.part, sequence(pipeline, std::vector<json>(steps, pipeline.idle))); });
    }
  }
}

TEST(PipelineLimits, SequencesWithinSequencesCountTogether) {
  for (const Pipeline& pipeline : pipelines()) {
    if (std::string_view(pipeline.part) == "post_processor") continue;  // has no order that could grow
    const json inner = sequence(pipeline, std::vector<json>(100, pipeline.idle));
    EXPECT_EQ(make(pipeline.part, sequence(pipeline, {inner, inner}))->encode("ab"), Ids{2});
    expect_error(Status::unsupported, {pipeline.part, "more than 256 steps"},
                 [&] { return make(pipeline.part, sequence(pipeline, {inner, sequence(pipeline, {inner, inner})})); });
  }
}

TEST(PipelineLimits, PostProcessorsThatAddTooMuch) {
  std::vector<json> single{{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}};
  for (int i = 0; i < 100; ++i) single.push_back({{"SpecialToken", {{"id", "a"}, {"type_id", 0}}}});
  const json adds = {{"type", "TemplateProcessing"},
                     {"single", single},
                     {"pair", json::array()},
                     {"special_tokens", {{"a", {{"id", "a"}, {"ids", {0}}, {"tokens", {"a"}}}}}}};
  const Pipeline last = pipelines().back();
  EXPECT_EQ(make(last.part, sequence(last, {adds, adds}))->suffix().size(), 200U);
  expect_error(Status::unsupported, {"post_processor", "more than 4096 tokens"},
               [&] { return make(last.part, sequence(last, std::vector<json>(50, adds))); });
}

// Each doubles what is not ASCII.
TEST(PipelineLimits, ManyByteLevels) {
  const std::string text = "\xc3\xa9\xc3\xa9\xc3\xa9";
  for (const char* part : {"normalizer", "pre_tokenizer"}) {
    const json step = std::string_view(part) == "normalizer" ? json{{"type", "ByteLevel"}}
                                                             : json{{"type", "ByteLevel"}, {"add_prefix_space", false}};
    for (const Pipeline& pipeline : pipelines()) {
      if (std::string_view(pipeline.part) != part) continue;
      EXPECT_EQ(make(part, sequence(pipeline, {step, step}))->encode(text), Ids{});
      const auto many = make(part, sequence(pipeline, std::vector<json>(40, step)));
      expect_error(Status::unsupported, {"times longer"}, [&] { return many->encode(text); });
    }
  }
}

// Pieces that are cut small before they grow, each within its bounds.
TEST(PipelineLimits, ManyByteLevelsOnManyPieces) {
  const Pipeline pre_tokenizers = pipelines()[1];
  std::vector<json> steps{{{"type", "FixedLength"}, {"length", 1}}};
  for (int i = 0; i < 12; ++i) steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  const auto tokenizer = make("pre_tokenizer", sequence(pre_tokenizers, steps));
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += "\xc3\xa9";
  expect_error(Status::unsupported, {"times longer"}, [&] { return tokenizer->encode(text); });
}

TEST(PipelineLimits, ReplacesThatGrow) {
  const json step = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaa"}};
  const Pipeline normalizers = pipelines()[0];
  const Pipeline decoders = pipelines()[2];
  EXPECT_EQ(make("normalizer", sequence(normalizers, {step, step}))->encode("a").size(), 16U);
  EXPECT_EQ(make("decoder", sequence(decoders, {step, step}))->decode(Ids{0}), std::string(16, 'a'));
  const auto normalizing = make("normalizer", sequence(normalizers, std::vector<json>(60, step)));
  expect_error(Status::unsupported, {"normalizers", "times longer"}, [&] { return normalizing->encode("a"); });
  const auto decoding = make("decoder", sequence(decoders, std::vector<json>(60, step)));
  expect_error(Status::unsupported, {"decoders", "times longer"}, [&] { return decoding->decode(Ids{0}); });
  // By a single step, however many tokens there are.
  const json huge = {{"type", "Replace"}, {"pattern", {{"Regex", ""}}}, {"content", std::string(10'000, 'x')}};
  for (const char* part : {"normalizer", "decoder"}) {
    const auto tokenizer = make(part, huge);
    expect_error(Status::unsupported, {"times longer"}, [&] {
      const Ids ids(1000, 0);
      return part == std::string_view("decoder") ? tokenizer->decode(ids)
                                                 : std::to_string(tokenizer->encode("aaaaaaaaaa").size());
    });
  }
}

}  // namespace
}  // namespace qdelta
