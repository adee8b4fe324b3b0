// How the algorithms of matrix products are chosen on a GPU.
#pragma once

namespace qdelta {

// While one exists, the products of this thread that are large are tuned: their algorithms are timed, each shape once,
// which takes as long as some fifty of the products, so it is for work whose shapes repeat, as in training. What is
// computed does not depend on it (kernels/cuda/matmul_tuning.h). Nothing happens on the CPU.
class ProductTuning {
 public:
  explicit ProductTuning(bool tunes = true) : before_(tunes_) { tunes_ = tunes; }
  ~ProductTuning() { tunes_ = before_; }
  ProductTuning(const ProductTuning&) = delete;
  ProductTuning& operator=(const ProductTuning&) = delete;

  [[nodiscard]] static bool tunes() { return tunes_; }

 private:
  static inline thread_local bool tunes_ = false;
  bool before_;
};

}  // namespace qdelta
