// Whole evaluations with a small model: scores by hand, batches, forks, and going on after a stop.
#include "eval/evaluation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "eval/multiple_choice.h"
#include "eval_testing.h"

namespace qdelta::testing {
namespace {

using namespace eval;  // NOLINT(google-build-using-namespace): most names here

// Its own log-softmax of the whole sequence, in double.
Likelihood expected_likelihood(const LanguageModel& model, const TokenPair& pair) {
  Tokens ids = pair.context;
  ids.insert(ids.end(), pair.continuation.begin(), pair.continuation.end());
  const auto width = static_cast<std::size_t>(model.config().vocab_size);
  Tensor logits(DType::f32, {static_cast<std::int64_t>(ids.size()), model.config().vocab_size});
  ModelRunner runner(model, {1});
  runner.logits({ids, std::vector<std::int64_t>{0, static_cast<std::int64_t>(ids.size())}}, logits.view());
  Likelihood out;
  for (std::size_t i = pair.context.size(); i < ids.size(); ++i) {
    const std::span<const float> z = std::as_const(logits).as<float>().subspan((i - 1) * width, width);
    double sum = 0;
    for (const float value : z) sum += std::exp(static_cast<double>(value));
    out.log_likelihood += z[static_cast<std::size_t>(ids[i])] - std::log(sum);
    out.greedy = out.greedy && std::max_element(z.begin(), z.end()) - z.begin() == ids[i];
  }
  return out;
}

class Evaluation : public ::testing::Test {
 protected:
  // A data set of each family, written by hand.
  Evaluation() {
    const auto write = [&](const char* name, const std::string& text) { write_file(data_.file(name), text); };
    write("lambada_openai.jsonl",
          "{\"text\": \"the river runs past the mill\"}\n{\"text\": \"a wheel that has not turned for years\"}\n"
          "{\"text\": \"water\\nand stone\"}\n");
    write("piqa.jsonl",
          "{\"goal\": \"cross a river\", \"sol1\": \"take the bridge\", \"sol2\": \"wait for winter\", \"label\": 0}\n"
          "{\"goal\": \"turn a wheel\", \"sol1\": \"push\", \"sol2\": \"ask it kindly to move on\", \"label\": 1}\n"
          "{\"goal\": \"x\", \"sol1\": \"y\", \"sol2\": \"zz\", \"label\": 1}\n");
    write("winogrande.jsonl",
          "{\"sentence\": \"the mill and the river: _ is old.\", \"option1\": \"mill\", \"option2\": \"river\", "
          "\"answer\": \"1\"}\n");
    write("wikitext.txt", " = One = \n The mill is old . \n = Two = \n It 's by the river , which runs on and on . \n");
    write("squad.jsonl",
          "{\"text\": \"the mill stands by the\", \"value\": \"a\"}\n{\"text\": \"who?\", \"value\": \"zqzqzq\"}\n");
    settings_.data = data_.path();
    settings_.lengths = {600};
    settings_.samples = 3;
    settings_.mqar = "16:2:5";
  }
  [[nodiscard]] TaskList tasks(const std::string& names) const {
    return make_tasks(tasks_named(names), {settings_, &encoder_, model_->config()});
  }
  [[nodiscard]] std::vector<TaskResult> evaluate(const std::string& names, std::int64_t batch,
                                                 std::vector<std::vector<nlohmann::json>>* kept = nullptr) const {
    const TaskList list = tasks(names);
    Engine engine(*model_, {1}, batch);
    Journal journal;
    std::vector<std::vector<nlohmann::json>> results;
    EXPECT_TRUE(run_examples(list, engine, journal, false, results, {}));
    std::vector<TaskResult> out;
    for (std::size_t i = 0; i < list.size(); ++i) out.push_back(aggregate(*list[i], results[i], {100, 1}));
    if (kept != nullptr) *kept = results;
    return out;
  }

  const TemporaryFolder data_;
  TaskSettings settings_;
  ByteTokenizer tokenizer_;
  RequestEncoder encoder_{tokenizer_, Bos::on, 64};
  std::unique_ptr<LanguageModel> model_ = speaking_model(speaking_config());
};

const char* const kAll = "lambada_openai,piqa,winogrande,wikitext,squad,niah_single_1,niah_single_2,niah_single_3,mqar";

TEST_F(Evaluation, LikelihoodsAreThoseOfTheLogits) {
  const TokenPair first = encoder_.pair("the river runs past the mill", " and on");
  const TokenPair second = encoder_.pair("the river runs past the mill", " and stands");
  const TokenPair alone = encoder_.pair("the wheel", " turns");
  const std::vector<const TokenPair*> pairs{&first, &second, &alone, &first};
  for (const std::int64_t batch : {1, 2, 8}) {
    Engine engine(*model_, {1}, batch);
    const std::vector<Likelihood> got = engine.likelihoods(pairs);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Likelihood expected = expected_likelihood(*model_, *pairs[i]);
      EXPECT_NEAR(got[i].log_likelihood, expected.log_likelihood, 1e-3);
      EXPECT_EQ(got[i].greedy, expected.greedy);
    }
  }
}

TEST_F(Evaluation, WhatTheModelWouldSayIsGreedy) {
  Engine engine(*model_, {1}, 2);
  const Generated said = engine.generate(tokenizer_, {encoder_.encode("the river")}, 5, {}).front();
  TokenPair pair{encoder_.encode("the river"), said.tokens};
  EXPECT_TRUE(engine.likelihoods(std::vector<const TokenPair*>{&pair})[0].greedy);
  pair.continuation.back() = pair.continuation.back() == 'a' ? 'b' : 'a';
  EXPECT_FALSE(engine.likelihoods(std::vector<const TokenPair*>{&pair})[0].greedy);
}

TEST_F(Evaluation, MetricsAreTheirFormulas) {
  const TaskList list = tasks("lambada_openai,piqa,wikitext");
  std::vector<std::vector<nlohmann::json>> results;
  const std::vector<TaskResult> got = evaluate("lambada_openai,piqa,wikitext", 2, &results);
  // Out of the log of examples, as anyone could.
  double sum = 0;
  for (const nlohmann::json& result : results[0]) sum += result["log_likelihoods"][0].get<double>();
  EXPECT_EQ(got[0].metrics[0].name, "perplexity");
  EXPECT_NEAR(got[0].metrics[0].estimate.value, std::exp(-sum / 3), 1e-9);
  EXPECT_EQ(got[0].metrics[1].name, "acc");

  double right = 0;
  double right_normalized = 0;
  const std::vector<std::pair<double, double>> lengths{{15, 15}, {4, 24}, {1, 2}};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto a = results[1][i]["log_likelihoods"][0].get<double>();
    const auto b = results[1][i]["log_likelihoods"][1].get<double>();
    const int gold = list[1]->description(static_cast<std::int64_t>(i))["gold"];
    right += (b > a ? 1 : 0) == gold ? 1 : 0;
    right_normalized += (b / lengths[i].second > a / lengths[i].first ? 1 : 0) == gold ? 1 : 0;
  }
  EXPECT_NEAR(got[1].metrics[0].estimate.value, right / 3, 1e-12);
  EXPECT_NEAR(got[1].metrics[1].estimate.value, right_normalized / 3, 1e-12);

  double total = 0;
  for (const nlohmann::json& page : results[2]) {
    for (const nlohmann::json& window : page["log_likelihoods"]) total += window.get<double>();
  }
  // By Python's re.split: 10 words and 29 bytes in the first page, 17 and 56 in the second, with its final newline.
  EXPECT_NEAR(got[2].metrics[0].estimate.value, std::exp(-total / 27), 1e-9 * std::exp(-total / 27));
  EXPECT_FALSE(got[2].metrics[0].estimate.error);
  const double bytes = 29 + 56;
  EXPECT_NEAR(got[2].metrics[2].estimate.value, -total / bytes / std::log(2.0), 1e-9);
}

TEST_F(Evaluation, TiesGoToTheFirst) {
  write_file(data_.file("piqa.jsonl"), "{\"goal\": \"g\", \"sol1\": \"same\", \"sol2\": \"same\", \"label\": 0}\n");
  EXPECT_EQ(evaluate("piqa", 4)[0].metrics[0].estimate.value, 1);
  write_file(data_.file("piqa.jsonl"), "{\"goal\": \"g\", \"sol1\": \"same\", \"sol2\": \"same\", \"label\": 1}\n");
  EXPECT_EQ(evaluate("piqa", 4)[0].metrics[1].estimate.value, 0);
}

TEST_F(Evaluation, DoesNotDependOnTheBatch) {
  const std::vector<TaskResult> one = evaluate(kAll, 1);
  ASSERT_EQ(one.size(), 9U);
  for (const std::int64_t batch : {2, 3, 16}) {
    const std::vector<TaskResult> got = evaluate(kAll, batch);
    for (std::size_t i = 0; i < one.size(); ++i) {
      for (std::size_t m = 0; m < one[i].metrics.size(); ++m) {
        const double expected = one[i].metrics[m].estimate.value;
        EXPECT_NEAR(got[i].metrics[m].estimate.value, expected, 1e-4 * std::abs(expected)) << one[i].task;
      }
    }
  }
}

TEST_F(Evaluation, GoesOnWhereItStopped) {
  const TemporaryFolder folder;
  const std::string path = folder.file("out.json.journal");
  const TaskList list = tasks(kAll);
  Engine engine(*model_, {1}, 2);
  std::vector<std::vector<nlohmann::json>> expected;
  Journal none;
  ASSERT_TRUE(run_examples(list, engine, none, false, expected, {}));
  // Stopped after every two examples, and once in the middle of a line.
  std::atomic<bool> stop = false;
  std::vector<std::vector<nlohmann::json>> results;
  int runs = 0;
  for (bool finished = false; !finished; ++runs) {
    ASSERT_LT(runs, 50);
    Journal journal(path, "key", false);
    const std::size_t before = journal.size();
    stop = false;
    finished = run_examples(list, engine, journal, stop, results, [&](const EvaluationProgress&) {
      if (journal.size() >= before + 2) stop = true;
    });
    if (runs == 2) write_file(path, read_file(path) + "{\"task\": \"pi");
  }
  EXPECT_GT(runs, 5);
  EXPECT_EQ(results, expected);
  EXPECT_NE(message_of([&] { Journal(path, "other", false); }).find("--restart"), std::string::npos);
  EXPECT_EQ(Journal(path, "other", true).size(), 0U);
  // A line in the middle that is damaged is not passed over.
  write_file(path, read_file(path) + "{\"task\": 3}\n");
  EXPECT_NE(message_of([&] { Journal(path, "other", false); }).find("line 2"), std::string::npos);
}

TEST_F(Evaluation, HashesTellDataApart) {
  const std::string before = hash_of(tasks("piqa"));
  EXPECT_EQ(hash_of(tasks("piqa")), before);
  write_file(data_.file("piqa.jsonl"), "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 1}\n");
  EXPECT_NE(hash_of(tasks("piqa")), before);
}

TEST_F(Evaluation, LimitsAndNames) {
  settings_.limit = 1;
  for (const std::unique_ptr<Task>& task : tasks(kAll)) EXPECT_EQ(task->size(), 1) << task->name();
  EXPECT_EQ(tasks("niah_single_2")[0]->name(), "niah_single_2_600");
  EXPECT_EQ(tasks("mqar")[0]->name(), "mqar_16_2");
  EXPECT_EQ(tasks("piqa,piqa").size(), 1U);
  EXPECT_NE(message_of([] { static_cast<void>(tasks_named("piqa,nonsense")); }).find("nonsense"), std::string::npos);
  EXPECT_NE(message_of([] { static_cast<void>(tasks_named("")); }).find("--tasks"), std::string::npos);
  settings_.mqar = "16:2";
  EXPECT_NE(message_of([&] { static_cast<void>(tasks("mqar")); }).find("--mqar"), std::string::npos);
  EXPECT_NE(message_of([&] {
              static_cast<void>(make_tasks(tasks_named("piqa"), {settings_, nullptr, model_->config()}));
            }).find("tokenizer"),
            std::string::npos);
}

TEST_F(Evaluation, AModelWithoutNumbersIsRefused) {
  for (float& value : model_->parameters()) value = std::nanf("");
  for (const char* name : {"piqa", "wikitext", "mqar"}) {
    EXPECT_NE(message_of([&] { static_cast<void>(evaluate(name, 2)); }).find("not finite"), std::string::npos) << name;
  }
}

TEST_F(Evaluation, TheTableHasEveryMetric) {
  const std::vector<TaskResult> results{{"piqa", 3, {{"acc", {0.5, 0.25}}, {"acc_norm", {1.0 / 3, {}}}}}};
  EXPECT_EQ(table_of(results),
            "task  examples  metric           value  std. error\n"
            "piqa         3  acc             0.5000      0.2500\n"
            "piqa         3  acc_norm        0.3333           -\n");
  const nlohmann::ordered_json json = json_of(results);
  EXPECT_EQ(json["piqa"]["acc_stderr"], 0.25);
  EXPECT_TRUE(json["piqa"]["acc_norm_stderr"].is_null());
}

}  // namespace
}  // namespace qdelta::testing
