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

using Json = nlohmann::json;
using testing::expect_error;
using Ids = std::vector<std::int32_t>;

// Where a tokenizer.json has a pipeline, what its sequence is called there, and a step that does nothing to "ab".
struct Pipeline {
  const char* part;
  const char* members;
  Json idle;
};
std::vector<Pipeline> pipelines() {
  return {
      {"normalizer", "normalizers", Json::parse(R"({"type": "NFC"})")},
      {"pre_tokenizer", "pretokenizers", Json::parse(R"({"type": "WhitespaceSplit"})")},
      {"decoder", "decoders", Json::parse(R"({"type": "Fuse"})")},
      {"post_processor", "processors", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}}};
}

Json file_of(const char* part, const Json& pipeline) {
  Json file = {
      {"added_tokens", Json::array()},
      {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", Json::array({"a b"})}}}};
  file[part] = pipeline;
  return file;
}
std::unique_ptr<Tokenizer> with_pipeline(const char* part, const Json& pipeline) {
  return make_json_tokenizer(file_of(part, pipeline).dump(), "label", {}, {});
}
Json sequence(const Pipeline& pipeline, const std::vector<Json>& steps) {
  return {{"type", "Sequence"}, {pipeline.members, steps}};
}

TEST(PipelineLimits, StepsOfASequence) {
  for (const Pipeline& pipeline : pipelines()) {
    const auto long_as_may_be =
        with_pipeline(pipeline.part, sequence(pipeline, std::vector<Json>(kMostSteps, pipeline.idle)));
    EXPECT_EQ(long_as_may_be->encode("ab"), Ids{2}) << pipeline.part;
    EXPECT_EQ(long_as_may_be->decode(Ids{2}), "ab") << pipeline.part;
    for (const std::size_t steps : {kMostSteps + 1, std::size_t{100'000}}) {
      // Put together as text: that many values of JSON take their time.
      std::string all = pipeline.idle.dump();
      const std::string another = "," + all;
      for (std::size_t i = 1; i < steps; ++i) all += another;
      std::string file = file_of(pipeline.part, sequence(pipeline, std::vector<Json>(1, "here"))).dump();
      file.replace(file.find("\"here\""), 6, all);
      expect_error(Status::unsupported, {"label: ", pipeline.part, "more than 256 steps"},
                   [&] { return make_json_tokenizer(file, "label", {}, {}); });
    }
  }
}

TEST(PipelineLimits, SequencesWithinSequencesCountTogether) {
  for (const Pipeline& pipeline : pipelines()) {
    if (std::string_view(pipeline.part) == "post_processor") continue;  // has no order that could grow
    const Json inner = sequence(pipeline, std::vector<Json>(100, pipeline.idle));
    EXPECT_EQ(with_pipeline(pipeline.part, sequence(pipeline, {inner, inner}))->encode("ab"), Ids{2});
    expect_error(Status::unsupported, {pipeline.part, "more than 256 steps"}, [&] {
      return with_pipeline(pipeline.part, sequence(pipeline, {inner, sequence(pipeline, {inner, inner})}));
    });
  }
}

TEST(PipelineLimits, PostProcessorsThatAddTooMuch) {
  std::vector<Json> single(1, Json::parse(R"({"Sequence": {"id": "A", "type_id": 0}})"));
  for (int i = 0; i < 100; ++i) single.push_back({{"SpecialToken", {{"id", "a"}, {"type_id", 0}}}});
  const Json adds = {
      {"type", "TemplateProcessing"},
      {"single", single},
      {"pair", Json::array()},
      {"special_tokens", {{"a", {{"id", "a"}, {"ids", Json::array({0})}, {"tokens", Json::array({"a"})}}}}}};
  const Pipeline last = pipelines().back();
  EXPECT_EQ(with_pipeline(last.part, sequence(last, {adds, adds}))->suffix().size(), 200U);
  expect_error(Status::unsupported, {"post_processor", "more than 4096 tokens"},
               [&] { return with_pipeline(last.part, sequence(last, std::vector<Json>(50, adds))); });
}

// Each doubles what is not ASCII.
TEST(PipelineLimits, ManyByteLevels) {
  const std::string text = "\xc3\xa9\xc3\xa9\xc3\xa9";
  for (const char* part : {"normalizer", "pre_tokenizer"}) {
    const Json step = std::string_view(part) == "normalizer" ? Json::parse(R"({"type": "ByteLevel"})")
                                                             : Json{{"type", "ByteLevel"}, {"add_prefix_space", false}};
    for (const Pipeline& pipeline : pipelines()) {
      if (std::string_view(pipeline.part) != part) continue;
      EXPECT_EQ(with_pipeline(part, sequence(pipeline, {step, step}))->encode(text), Ids{});
      const auto many = with_pipeline(part, sequence(pipeline, std::vector<Json>(40, step)));
      expect_error(Status::unsupported, {"times longer"}, [&] { return many->encode(text); });
    }
  }
}

// Pieces that are cut small before they grow, each within its bounds.
TEST(PipelineLimits, ManyByteLevelsOnManyPieces) {
  const Pipeline pre_tokenizers = pipelines()[1];
  std::vector<Json> steps(1, Json::parse(R"({"type": "FixedLength", "length": 1})"));
  for (int i = 0; i < 12; ++i)
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  const auto tokenizer = with_pipeline("pre_tokenizer", sequence(pre_tokenizers, steps));
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += "\xc3\xa9";
  expect_error(Status::unsupported, {"times longer"}, [&] { return tokenizer->encode(text); });
}

TEST(PipelineLimits, ReplacesThatGrow) {
  const Json step = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaa"}};
  const Pipeline normalizers = pipelines()[0];
  const Pipeline decoders = pipelines()[2];
  EXPECT_EQ(with_pipeline("normalizer", sequence(normalizers, {step, step}))->encode("a").size(), 16U);
  EXPECT_EQ(with_pipeline("decoder", sequence(decoders, {step, step}))->decode(Ids{0}), std::string(16, 'a'));
  const auto normalizing = with_pipeline("normalizer", sequence(normalizers, std::vector<Json>(60, step)));
  expect_error(Status::unsupported, {"normalizers", "times longer"}, [&] { return normalizing->encode("a"); });
  const auto decoding = with_pipeline("decoder", sequence(decoders, std::vector<Json>(60, step)));
  expect_error(Status::unsupported, {"decoders", "times longer"}, [&] { return decoding->decode(Ids{0}); });
  // By a single step, however many tokens there are.
  const Json huge = {{"type", "Replace"}, {"pattern", {{"Regex", ""}}}, {"content", std::string(10'000, 'x')}};
  for (const char* part : {"normalizer", "decoder"}) {
    const auto tokenizer = with_pipeline(part, huge);
    expect_error(Status::unsupported, {"times longer"}, [&] {
      const Ids ids(1000, 0);
      return part == std::string_view("decoder") ? tokenizer->decode(ids)
                                                 : std::to_string(tokenizer->encode("aaaaaaaaaa").size());
    });
  }
}

}  // namespace
}  // namespace qdelta
