// Training on the GPU, bit for bit: a run that is stopped and resumed is the run that never was, the same seed gives
// the same bits, and so do products whose algorithm was chosen by timing.
#include <gtest/gtest.h>

#include "cuda/device.h"
#include "kernels/device.h"
#include "kernels/layers.h"
#include "kernels/product_tuning.h"
#include "train/training_case.h"

namespace qdelta::testing {
namespace {

constexpr std::int64_t kSteps = 12;

class TrainingOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    QDELTA_NEEDS_DEVICE();
    gpu_ = open_gpu(0);
  }
  [[nodiscard]] Device device(DType activations) const { return {1, gpu_.get(), activations}; }

  // Runs until the end, or up to and including step `last`.
  TrainingOutcome run(const std::string& name, std::string_view mixer, DType dtype, Recompute recompute,
                      std::int64_t last = kSteps) {
    std::atomic<bool> stop = false;
    TrainingOptions options = tiny_run(folder_.file(name), kSteps);
    options.recompute = recompute;
    options.device = device(dtype);
    options.resume = newest_checkpoint(options.out).has_value();
    LanguageModel model(tiny_config(mixer));
    initialise(model.layout(), 5, model.parameters());
    WatchedSource source(shards_.source(), [&](std::int64_t batch) {
      if (batch == last && last < kSteps) stop = true;  // during that step
    });
    return train_quietly(model, source, shards_.validation(), options, stop);
  }

  TemporaryFolder folder_;
  ShardsOfSteps shards_{folder_.file("shards")};

 private:
  std::shared_ptr<const cuda::Context> gpu_;
};

TEST_F(TrainingOnGpu, ResumedGivesTheNumbersOfAnUndisturbedRun) {
  for (const char* mixer : {"q_delta", "mamba"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Recompute recompute : {Recompute::none, Recompute::some}) {
        const std::string name =
            fmt::format("{}_{}_{}", mixer, name_of(dtype), recompute == Recompute::some ? "some" : "none");
        SCOPED_TRACE(name);
        EXPECT_EQ(run(name, mixer, dtype, recompute).end, TrainingOutcome::End::finished);
        EXPECT_EQ(run(name + "_halves", mixer, dtype, recompute, kSteps / 2).end, TrainingOutcome::End::interrupted);
        EXPECT_EQ(run(name + "_halves", mixer, dtype, recompute).end, TrainingOutcome::End::finished);
        const Numbers whole = numbers_of(folder_.file(name));
        EXPECT_EQ(whole.log.size(), static_cast<std::size_t>(kSteps));
        expect_same(numbers_of(folder_.file(name + "_halves")), whole);
      }
      // What is recomputed has the bits of what would have been kept, and a run has the bits of the same run before.
      const std::string start = fmt::format("{}_{}_", mixer, name_of(dtype));
      SCOPED_TRACE(start);
      expect_same(numbers_of(folder_.file(start + "some")), numbers_of(folder_.file(start + "none")));
      (void)run(start + "again", mixer, dtype, Recompute::none);
      expect_same(numbers_of(folder_.file(start + "again")), numbers_of(folder_.file(start + "none")));
    }
  }
}

// Large enough to be tuned: 2 * 4096 * 2048 * 1024 FLOP and more.
TEST_F(TrainingOnGpu, TunedProductsGiveTheSameBits) {
  const std::int64_t N = 4096;
  const std::int64_t O = 2048;
  const std::int64_t I = 1024;
  Random random(17);
  const auto filled = [&](DType dtype, const Shape& shape) {
    Tensor tensor(DType::f32, shape);
    for (float& value : tensor.as<float>()) value = random.normal();
    return dtype == DType::f32 ? std::move(tensor) : converted(tensor.view(), dtype);
  };
  for (const DType dtype : {DType::bf16, DType::f32}) {
    SCOPED_TRACE(name_of(dtype));
    const Tensor x = filled(dtype, {N, I});
    const Tensor w = filled(dtype, {O, I});
    const Tensor dy = filled(dtype, {N, O});
    const Tensor stream = filled(DType::f32, {N, O});
    const Tensor sums = filled(DType::f32, {O, I});
    struct Results {
      Tensor y, added, dx, dw;
    };
    const auto run = [&](bool tunes) -> Results {
      const std::shared_ptr<const cuda::Context> gpu = open_gpu(0);  // nothing chosen yet
      const Device on{1, gpu.get(), dtype};
      const ProductTuning tuning(tunes);
      const DeviceTensor dev_x(x), dev_w(w), dev_dy(dy), y(dtype, {N, O}), added(stream), dx(dtype, {N, I}), dw(sums);
      linear_forward(on, {.x = dev_x.view(), .w = dev_w.view(), .y = y.view(), .add = {}});
      linear_forward(on, {.x = dev_x.view(), .w = dev_w.view(), .y = added.view(), .add = added.view()});
      linear_backward(on,
                      {.x = dev_x.view(), .w = dev_w.view(), .dy = dev_dy.view(), .dx = dx.view(), .dw = dw.view()});
      synchronize(on);
      return {y.get(), added.get(), dx.get(), dw.get()};
    };
    const Results plain = run(false);
    const Results tuned = run(true);
    const auto expect_bits = [](const Tensor& got, const Tensor& expected, const char* name) {
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.bytes()), 0) << name;
    };
    expect_bits(tuned.y, plain.y, "y");
    expect_bits(tuned.added, plain.added, "y with a sum in place");
    expect_bits(tuned.dx, plain.dx, "dx");
    expect_bits(tuned.dw, plain.dw, "dw");
  }
}

}  // namespace
}  // namespace qdelta::testing
