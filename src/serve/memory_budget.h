// How much memory the requests that have been accepted may come to need, all together.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

namespace qdelta::serve {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t most) : most_(most) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Bytes that are given back when it goes.
  class Share {
   public:
    Share(MemoryBudget& budget, std::size_t bytes) : budget_(budget), bytes_(bytes) {}
    ~Share() { budget_.used_ -= bytes_; }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    // Gives back all but so many.
    void shrink(std::size_t bytes) {
      if (bytes >= bytes_) return;
      budget_.used_ -= bytes_ - bytes;
      bytes_ = bytes;
    }

   private:
    MemoryBudget& budget_;
    std::size_t bytes_;
  };

  [[nodiscard]] std::size_t most() const { return most_; }
  [[nodiscard]] std::size_t used() const { return used_; }
  // Null where there is not so much left.
  [[nodiscard]] std::unique_ptr<Share> take(std::size_t bytes) {
    if (used_.fetch_add(bytes) + bytes <= most_) return std::make_unique<Share>(*this, bytes);
    used_ -= bytes;
    return nullptr;
  }

 private:
  const std::size_t most_;
  std::atomic<std::size_t> used_{0};
};

}  // namespace qdelta::serve
