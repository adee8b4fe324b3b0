// What the benchmarks of the command line share: which model is measured, and results as a file.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/model_flags.h"
#include "kernels/device.h"

namespace CLI {
class App;
}

namespace qdelta {

void add_bench_train(CLI::App& group);
void add_bench_generate(CLI::App& group);
void add_bench_serve(CLI::App& group);

// The flags of a random model.
void add_bench_model(CLI::App& command, ModelFlags& flags);
[[nodiscard]] ModelConfig bench_model(ModelFlags flags);
// One line for people.
[[nodiscard]] std::string describe_model(const ModelConfig& config, std::int64_t parameters);
[[nodiscard]] nlohmann::ordered_json model_as_json(const ModelConfig& config, std::int64_t parameters);

// What becomes of a benchmark's results: a file, and a comparison with an earlier run's.
class ReportFlags {
 public:
  void add_to(CLI::App& command);
  // Before anything is measured: throws where the baseline cannot be read.
  void prepare();
  // Writes the file, prints the comparison, and ends with exit status 1 where something became slower.
  void finish(const nlohmann::ordered_json& report) const;

 private:
  std::string json_, baseline_path_;
  double tolerance_ = 10;  // percent
  std::shared_ptr<const nlohmann::json> baseline_;
};

// "12.3%", and with a question mark where it cannot be relied upon.
[[nodiscard]] std::string share_text(double share, const std::string& doubt);
// Notes for below a table: which of its figures cannot be relied upon, and why.
class Doubts {
 public:
  void add(const std::string& row, const std::string& doubt);
  void print() const;

 private:
  std::vector<std::string> notes_;
};

// The first members of every report.
[[nodiscard]] nlohmann::ordered_json report_of(const char* benchmark, const Device& device);

}  // namespace qdelta
