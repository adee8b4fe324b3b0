// How the next token is drawn from logits: by infer/sampler.h on the host, by kernels/cuda/sample.cu on a GPU.
#pragma once

#include <cstdint>

namespace qdelta {

struct SamplingOptions {
  float temperature = 0.8F;         // 0: always the most likely token
  int top_k = 0;                    // only the k most likely; 0: all
  float top_p = 1.0F;               // only the most likely that together reach p
  float min_p = 0.0F;               // only those at least min_p times as likely as the most likely
  float repetition_penalty = 1.0F;  // divides (or multiplies, if negative) the logits of tokens already seen
  std::uint64_t seed = 0;

  // Throws with the option and what is wrong with it.
  void check() const;
};

}  // namespace qdelta
