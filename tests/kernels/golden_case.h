// The golden cases: inputs in float32, answers in float64 from an independent reference.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "kernels/recurrence_case.h"

namespace qdelta::testing {

struct GoldenCase {
  std::string name;
  bool of_repository = false;
  RecurrenceCase problem;
  Reference expected;

  // Values of the case without the norm reach 1e6, and cancel.
  [[nodiscard]] Tolerance tolerance() const { return name == "q_delta_no_norm" ? Tolerance{1e-4, 1e-4} : Tolerance{}; }
};

inline GoldenCase read_golden_case(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path.string());
  GoldenCase made;
  made.name = path.stem().string();
  RecurrenceCase& problem = made.problem;
  const auto read = [&](std::string_view name) {
    return file.contains(name) ? converted(file.view(name), DType::f32) : Tensor();
  };
  problem.q = read("q");
  problem.k = read("k");
  problem.v = read("v");
  problem.g = read("g");
  problem.beta = read("beta");
  problem.lambda = read("lambda");
  problem.h0 = read("h0");
  problem.d_o = read("do");
  problem.d_ht = read("dht");

  CaseSpec& spec = problem.spec;
  spec.rule = rule_from_name(file.metadata().at("rule")).value();
  spec.scale = std::stof(file.metadata().at("scale"));
  spec.qk_l2norm = file.metadata().at("qk_l2norm") == "true";
  spec.batch = problem.q.shape()[0];
  spec.tokens = problem.q.shape()[1];
  spec.heads = problem.q.shape()[2];
  spec.shared = problem.v.shape()[2] / spec.heads;
  spec.key_dim = problem.q.shape()[3];
  spec.value_dim = problem.v.shape()[3];
  if (file.contains("cu_seqlens")) spec.cu_seqlens = integers_of(file.view("cu_seqlens"), "cu_seqlens");
  spec.h0 = file.contains("h0");
  spec.dh0 = file.contains("dh0");

  const auto expect = [&](std::string_view name) {
    return file.contains(name) ? to_doubles(file.view(name)) : std::vector<double>();
  };
  made.expected = {expect("o"),  expect("ht"),    expect("dq"),      expect("dk"), expect("dv"),
                   expect("dg"), expect("dbeta"), expect("dlambda"), expect("dh0")};
  return made;
}

// Those of the repository, and those of the folder that QDELTA_GOLDEN names, without the ones that are in both.
inline std::vector<GoldenCase> read_golden_cases() {
  std::vector<std::filesystem::path> folders{std::filesystem::path(golden_folder()) / "op"};
  if (const char* more = std::getenv("QDELTA_GOLDEN")) folders.push_back(std::filesystem::path(more) / "op");
  std::vector<GoldenCase> cases;
  std::set<std::string> taken;
  for (const auto& folder : folders) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      if (!taken.insert(path.stem().string()).second) continue;
      cases.push_back(read_golden_case(path));
      cases.back().of_repository = folder == folders[0];
    }
  }
  return cases;
}

}  // namespace qdelta::testing
