// The harness itself: it passes an op that is right, and fails one for each way in which it can be wrong.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/device.h"
#include "ops/op_harness.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

enum class Fault { none, value, unwritten, gap, before, input, written_not_added, threads, scratch, oracle_gradient };

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kColumns = 5;

// to (+)= 2 from, through the host, so that it runs on any device.
void twice(const Device& device, const ConstTensorView& from, const TensorView& to, bool add, float factor = 2) {
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::vector<float> row(kColumns);
    std::vector<float> old(kColumns);
    download(device, row.data(), from.data + r * from.step(0) * 4, kColumns * 4);
    download(device, old.data(), to.data + r * to.step(0) * 4, kColumns * 4);
    for (std::size_t c = 0; c < row.size(); ++c) row[c] = factor * row[c] + (add ? old[c] : 0);
    upload(device, to.data + r * to.step(0) * 4, row.data(), kColumns * 4);
    synchronize(device);
  }
}

void run_faulty(Fault fault, const Device& device, const OpTensors& t, Workspace& workspace) {
  const TensorView y = t["y"];
  const float one = 1;
  const bool wrong = fault == Fault::value || (fault == Fault::threads && device.threads == 3);
  twice(device, t["x"], y, false, wrong ? 2.0001F : 2);
  const std::span<std::byte> scratch = workspace.get(64);
  upload(device, scratch.data() + (fault == Fault::scratch ? 64 : 0), &one, sizeof(one));
  if (fault == Fault::unwritten) {
    const std::uint32_t nan = 0xffffffff;
    upload(device, y.data + 4, &nan, sizeof(nan));
  }
  if (fault == Fault::gap && y.step(0) > kColumns) upload(device, y.data + kColumns * 4, &one, sizeof(one));
  if (fault == Fault::before) upload(device, y.data - 4, &one, sizeof(one));
  if (fault == Fault::input) upload(device, t["x"].data, &one, sizeof(one));
  synchronize(device);
}

int failures_with(Fault fault) {
  const Shape shape{kRows, kColumns};
  OpCase c{.op = "twice", .shape = "3 x 5"};
  c.listed = false;
  c.in("x", kF32, shape);
  c.out("y", kF32, shape);
  c.in("dy", kF32, shape);
  c.sum("dx", kF32, shape);
  c.forward = [=](const Device& device, OpTensors& t, Workspace& workspace) {
    static_cast<void>(workspace.get(64));  // before anything is done
    run_faulty(fault, device, t, workspace);
  };
  c.backward = [=](const Device& device, OpTensors& t, Workspace&) {
    twice(device, t["dy"], t["dx"], fault != Fault::written_not_added);
  };
  c.oracle_forward = [](OpValues& v) {
    for (std::size_t i = 0; i < v["y"].size(); ++i) v["y"][i] = 2 * v["x"][i];
  };
  c.oracle_backward = [=](OpValues& v) {
    for (std::size_t i = 0; i < v["dx"].size(); ++i)
      v["dx"][i] += (fault == Fault::oracle_gradient ? 2.001 : 2) * v["dy"][i];
  };
  ::testing::TestPartResultArray results;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    check_op(c);
  }
  int failures = 0;
  for (int i = 0; i < results.size(); ++i) failures += results.GetTestPartResult(i).failed() ? 1 : 0;
  return failures;
}

TEST(OpHarness, PassesAnOpThatIsRight) { EXPECT_EQ(failures_with(Fault::none), 0); }

TEST(OpHarness, FindsEveryFault) {
  for (const Fault fault : {Fault::value, Fault::unwritten, Fault::gap, Fault::before, Fault::input,
                            Fault::written_not_added, Fault::threads, Fault::scratch, Fault::oracle_gradient}) {
    EXPECT_GT(failures_with(fault), 0) << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace qdelta::testing
