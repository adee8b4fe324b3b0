// A recorded model: its folder's checkpoint, the tokens it was run on, and what came out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "model/checkpoint.h"
#include "testing.h"

namespace qdelta::testing {

inline constexpr const char* kGoldenModels[] = {"qdelta_tiny", "gated_deltanet_tiny", "qdelta_gva_tied",
                                                "mamba_tiny",  "mamba_published",     "gated_deltanet_sigmoid"};

struct RecordedModel {
  std::unique_ptr<LanguageModel> model;
  SafetensorsFile expected;
  std::vector<std::int32_t> ids, targets;
  std::vector<std::int64_t> offsets;

  explicit RecordedModel(const std::string& name)
      : model(load_model(folder_of(name))), expected(SafetensorsFile::open(folder_of(name) + "/expected.safetensors")) {
    const ConstTensorView input = expected.view("input_ids");
    const std::int64_t T = input.extent(1);
    const std::vector<std::int64_t> flat =
        integers_of(ConstTensorView(input.data, input.dtype, {input.shape.elements()}), "input_ids");
    ids.assign(flat.begin(), flat.end());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      targets.push_back((static_cast<std::int64_t>(i) + 1) % T == 0 ? -1 : ids[i + 1]);
    }
    for (std::int64_t b = 0; b <= input.extent(0); ++b) offsets.push_back(b * T);
  }
  [[nodiscard]] ModelInput input() const { return {ids, offsets}; }
  // The largest error of a gradient, and of which tensor; of those with at least `size` numbers.
  [[nodiscard]] std::pair<double, std::string> worst_gradient(std::span<const float> gradients,
                                                              std::int64_t size = 1) const {
    std::pair<double, std::string> worst;
    for (const NamedSlot& tensor : model->layout().tensors) {
      if (tensor.slot.shape.elements() < size) continue;
      const auto part = gradients.subspan(static_cast<std::size_t>(tensor.slot.offset),
                                          static_cast<std::size_t>(tensor.slot.shape.elements()));
      const double error = relative_error(std::vector<double>(part.begin(), part.end()),
                                          to_doubles(expected.view("grad." + tensor.name)));
      if (error >= worst.first) worst = {error, tensor.name};
    }
    return worst;
  }
  [[nodiscard]] double logits_error(const Tensor& logits) const {
    return relative_error(to_doubles(logits.view()), to_doubles(expected.view("logits")));
  }
  [[nodiscard]] double loss() const { return element_as_double(expected.view("loss"), 0); }

 private:
  static std::string folder_of(const std::string& name) { return golden_folder() + "/model/" + name; }
};

}  // namespace qdelta::testing
