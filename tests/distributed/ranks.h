// What the tests that run on several ranks share: one communicator for all tests of a process, and the memory they use.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "core/random.h"
#include "distributed/communicator.h"
#include "testing.h"

namespace qdelta::testing {

struct Ranks {
  Communicator* communicator = nullptr;
  Device device;  // where the tests' memory lies
  // Sums are taken in the order of the ranks, so that a plain loop gives their bits.
  bool in_rank_order = true;
};
inline Ranks ranks;

inline Communicator& communicator() { return *ranks.communicator; }
inline std::size_t rank_count() { return static_cast<std::size_t>(communicator().size()); }
inline std::size_t own_rank() { return static_cast<std::size_t>(communicator().rank()); }

// Sizes in MiB beyond what MPI is given at once take memory and time: they are for two ranks.
inline std::size_t large_mebibytes(std::size_t size) { return quick() || rank_count() > 2 ? 4 : size; }

// Values on the device.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(std::size_t count) : buffer_(ranks.device, count * sizeof(T)), count_(count) {}
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
    upload(ranks.device, buffer_.data(), values.data(), values.size() * sizeof(T));
    synchronize(ranks.device);
  }
  [[nodiscard]] std::span<T> span() { return {reinterpret_cast<T*>(buffer_.data()), count_}; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> out(count_);
    download(ranks.device, out.data(), buffer_.data(), count_ * sizeof(T));
    return out;
  }

 private:
  DeviceBuffer buffer_;
  std::size_t count_;
};

// What a rank contributes: any rank can compute it. Of very different sizes, so that the order of a sum shows.
template <class T>
std::vector<T> values_of(std::size_t rank, std::size_t count, std::uint64_t seed = 0) {
  Random random(mixed_seed(seed, rank, count));
  std::vector<T> values(count);
  for (T& value : values) {
    if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>((random.uniform() - 0.5) * static_cast<double>(1U << random.integer(0, 20)));
    } else {
      value = static_cast<T>(random.bits());
    }
  }
  return values;
}

template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size()) return ::testing::AssertionFailure() << "sizes " << got.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) == 0) continue;
    return ::testing::AssertionFailure() << "rank " << own_rank() << ", element " << i << " of " << got.size() << ": "
                                         << +got[i] << ", not " << +expected[i];
  }
  return ::testing::AssertionSuccess();
}

}  // namespace qdelta::testing
