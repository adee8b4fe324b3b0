// What the benchmarks of the command line share: which model is measured, and results as a file.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

#include "cli/model_flags.h"

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

void write_report(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace qdelta
