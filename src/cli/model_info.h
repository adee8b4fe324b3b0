// What `qdelta info --model` says: the size of a model, and the memory that it takes to run and to train.
#pragma once

#include <cstdint>
#include <string>

namespace qdelta {

struct ModelInfoOptions {
  std::string model;  // a config.json, or a folder that holds one
  std::int64_t rows = 8, seq_len = 512;
  bool json = false;
};

void print_model_info(const ModelInfoOptions& options);

// "1.5 MiB"
[[nodiscard]] std::string size_text(std::int64_t bytes);

}  // namespace qdelta
