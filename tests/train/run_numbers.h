// Whole runs, compared bit by bit.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "io/run_log.h"
#include "train/training_state.h"

namespace qdelta::testing {

inline std::string log_of(const std::string& run) { return run + "/" + kRunLogName; }

// What a run computed, without how long it took.
struct Numbers {
  std::string parameters, moments, average;  // of the newest checkpoint, as files
  nlohmann::json state;
  std::vector<std::string> log;

  bool operator==(const Numbers&) const = default;
};

inline Numbers numbers_of(const std::string& run) {
  const auto contents = [](const std::string& path) -> std::string {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  };
  Numbers numbers;
  const std::string folder = newest_checkpoint(run).value();
  numbers.parameters = contents(folder + "/model.safetensors");
  numbers.moments = contents(folder + "/optimizer.safetensors");
  numbers.average = contents(folder + "/ema/model.safetensors");  // "" where there is none
  numbers.state = nlohmann::json::parse(contents(folder + "/state.json"));
  numbers.state.erase("seconds");
  numbers.state.erase("xxh3");  // of the seconds, too
  for (const RunRecord& r : read_run_log(log_of(run))) {
    numbers.log.push_back(fmt::format("{} {} {:a} {:a} {:a} {:a} {}", r.step, r.tokens, r.loss,
                                      r.validation_loss.value_or(-1), r.gradient_norm, r.learning_rate, r.skipped));
  }
  return numbers;
}

// Says which part differs, instead of printing files.
inline void expect_same(const Numbers& got, const Numbers& expected) {
  EXPECT_EQ(got.log, expected.log);
  EXPECT_EQ(got.state, expected.state);
  EXPECT_TRUE(got.parameters == expected.parameters) << "the parameters differ";
  EXPECT_TRUE(got.moments == expected.moments) << "the moments of the optimizer differ";
  EXPECT_TRUE(got.average == expected.average) << "the averaged parameters differ";
}

}  // namespace qdelta::testing
