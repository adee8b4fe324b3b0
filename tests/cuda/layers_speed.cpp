// How fast the layer kernels are: microseconds of each, and what part that is of a plain copy's bandwidth (or of the
// best matrix product's rate) on the same GPU. Rows rotate among several sets where they would fit the cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "core/random.h"
#include "cuda/device.h"
#include "kernels/cuda/layers.h"

namespace qdelta::testing {
namespace {

constexpr DType kF32 = DType::f32;
constexpr DType kBF16 = DType::bf16;

double copy_bandwidth = 1;  // bytes a second, read and written

// Microseconds of one call: the median over batches of calls, captured in a graph so that launches cost little.
double microseconds(const std::function<void(int)>& work) {
  const cudaStream_t stream = device_context().stream();
  constexpr int kCalls = 8;
  work(0);
  device_context().synchronize();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  QDELTA_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kCalls; ++i) work(i);
  QDELTA_CUDA(cudaStreamEndCapture(stream, &graph));
  QDELTA_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  QDELTA_CUDA(cudaEventCreate(&begin));
  QDELTA_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    QDELTA_CUDA(cudaEventRecord(begin, stream));
    QDELTA_CUDA(cudaGraphLaunch(executable, stream));
    QDELTA_CUDA(cudaEventRecord(end, stream));
    QDELTA_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    QDELTA_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return 1e3 * times[times.size() / 2] / kCalls;
}

void line(const std::string& name, double bytes, const std::function<void(int)>& work) {
  const double us = microseconds(work);
  std::printf("%-44s %9.1f us %8.0f GB/s %5.0f %% of copy\n", name.c_str(), us, bytes / us * 1e-3,
              100 * bytes / (us * 1e-6) / copy_bandwidth);
}
void matrix_line(const std::string& name, double flop, double rate, const std::function<void(int)>& work) {
  const double us = microseconds(work);
  std::printf("%-44s %9.1f us %8.1f TFLOP/s %5.0f %% of the best\n", name.c_str(), us, flop / us * 1e-6,
              100 * flop / us * 1e-6 / rate);
}

// A tensor of which the host keeps no picture.
class Area {
 public:
  Area(DType dtype, const Shape& shape)
      : buffer_(static_cast<std::size_t>(shape.elements()) * size_of(dtype)), view_(buffer_.data(), dtype, shape) {
    buffer_.fill(0);
  }
  [[nodiscard]] TensorView view() const { return view_; }
  [[nodiscard]] std::size_t size() const { return buffer_.size(); }

 private:
  DeviceBuffer buffer_;
  TensorView view_;
};

// A block of random numbers, repeated.
Area noise(DType dtype, const Shape& shape, float scale = 1.0F) {
  Random random(7);
  const std::int64_t count = std::min<std::int64_t>(shape.elements(), 1 << 18);
  Tensor block(kF32, {count});
  for (float& value : block.as<float>()) value = scale * random.normal();
  const Tensor typed = converted(block.view(), dtype);
  Area out(dtype, shape);
  std::byte* data = out.view().data;
  QDELTA_CUDA(cudaMemcpy(data, typed.data(), typed.bytes(), cudaMemcpyHostToDevice));
  for (std::size_t done = typed.bytes(); done < out.size(); done *= 2) {
    QDELTA_CUDA(cudaMemcpy(data + done, data, std::min(done, out.size() - done), cudaMemcpyDeviceToDevice));
  }
  return out;
}

TensorView columns(const TensorView& matrix, std::int64_t begin, std::int64_t width) {
  TensorView view = matrix;
  view.data += begin * static_cast<std::int64_t>(size_of(matrix.dtype));
  view.shape = {matrix.extent(0), width};
  return view;
}
std::span<float> floats_of(const Area& tensor) {
  return {reinterpret_cast<float*>(tensor.view().data), static_cast<std::size_t>(tensor.view().shape.elements())};
}

void measure() {
  const cuda::Context& context = device_context();
  const std::int64_t N = 32768;
  const std::int64_t D = 1024;
  const double ND = static_cast<double>(N * D);
  {
    const std::size_t bytes = std::size_t{2} << 30;
    const DeviceBuffer from(bytes);
    const DeviceBuffer to(bytes);
    from.fill(0x3c);
    // Not in a graph, where another engine would copy.
    const cudaStream_t stream = context.stream();
    cudaEvent_t events[2] = {};
    for (cudaEvent_t& event : events) QDELTA_CUDA(cudaEventCreate(&event));
    for (int i = 0; i < 12; ++i) {
      if (i == 4) QDELTA_CUDA(cudaEventRecord(events[0], stream));
      QDELTA_CUDA(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream));
    }
    QDELTA_CUDA(cudaEventRecord(events[1], stream));
    QDELTA_CUDA(cudaEventSynchronize(events[1]));
    float ms = 0;
    QDELTA_CUDA(cudaEventElapsedTime(&ms, events[0], events[1]));
    copy_bandwidth = 2 * 8 * static_cast<double>(bytes) / (static_cast<double>(ms) * 1e-3);
    std::printf("copy of 2 GiB: %.0f GB/s\n", copy_bandwidth * 1e-9);
  }
  const DeviceBuffer space(std::size_t{256} << 20);
  {
    const Area x = noise(kBF16, {N, D});
    const Area stream = noise(kF32, {N, D});
    const Area y = noise(kBF16, {N, D});
    const Area d_stream = noise(kF32, {N, D});
    const Area dx = noise(kBF16, {N, D});
    const Area weight = noise(kF32, {D});
    const Area dweight = noise(kF32, {D});
    const Area inverse = noise(kF32, {N});
    line("rms_norm forward, bf16", 4 * ND, [&](int) {
      cuda::rms_norm_forward(context, {x.view(), weight.view(), y.view(), inverse.view(), 1e-6F});
    });
    line("rms_norm forward, f32 to bf16", 6 * ND, [&](int) {
      cuda::rms_norm_forward(context, {stream.view(), weight.view(), y.view(), inverse.view(), 1e-6F});
    });
    line("rms_norm backward, bf16", 8 * ND, [&](int) {
      cuda::rms_norm_backward(
          context, {x.view(), weight.view(), inverse.view(), y.view(), x.view(), dweight.view(), {}}, space.bytes());
    });
    line("rms_norm backward, f32 stream", 14 * ND, [&](int) {
      cuda::rms_norm_backward(
          context, {stream.view(), weight.view(), inverse.view(), y.view(), d_stream.view(), dweight.view(), {}},
          space.bytes());
    });
    line("copy_rows f32 to bf16", 6 * ND, [&](int) { cuda::copy_rows(context, {stream.view(), y.view()}); });
  }
  {
    const std::int64_t V = 256;
    const std::int64_t width = 1536;
    const double count = static_cast<double>(N * width);
    const Area wide = noise(kBF16, {N, 4 * width});
    const Area x = noise(kBF16, {N, width});
    const Area y = noise(kBF16, {N, width});
    const Area weight = noise(kF32, {V});
    const Area dweight = noise(kF32, {V});
    const TensorView gate = columns(wide.view(), 0, width);
    const TensorView dx = columns(wide.view(), width, width);
    const TensorView dgate = columns(wide.view(), 2 * width, width);
    line("gated_norm forward, 6 x 256", 6 * count, [&](int) {
      cuda::gated_norm_forward(context, {x.view(), gate, weight.view(), y.view(), 1e-6F});
    });
    line("gated_norm backward", 10 * count, [&](int) {
      cuda::gated_norm_backward(
          context, {x.view(), gate, weight.view(), y.view(), dx, dgate, dweight.view(), 1e-6F, {}}, space.bytes());
    });
  }
  {
    const std::int64_t F = 2816;
    const double count = static_cast<double>(N * F);
    const Area gate_up = noise(kBF16, {N, 2 * F});
    const Area d_gate_up = noise(kBF16, {N, 2 * F});
    const Area y = noise(kBF16, {N, F});
    const TensorView gate = columns(gate_up.view(), 0, F);
    const TensorView up = columns(gate_up.view(), F, F);
    line("swiglu forward, 2816", 6 * count, [&](int) { cuda::swiglu_forward(context, {gate, up, y.view()}); });
    line("swiglu backward", 10 * count, [&](int) {
      cuda::swiglu_backward(context,
                            {gate, up, y.view(), columns(d_gate_up.view(), 0, F), columns(d_gate_up.view(), F, F), {}});
    });
  }
  {
    const std::int64_t channels = 3072;
    const double count = static_cast<double>(N * channels);
    const Area x = noise(kBF16, {N, channels});
    const Area y = noise(kBF16, {N, channels});
    const Area dx = noise(kBF16, {N, channels});
    const Area weight = noise(kF32, {channels, 4});
    const Area dweight = noise(kF32, {channels, 4});
    std::vector<std::int64_t> ends;
    for (std::int64_t n = 0; n <= 16; ++n) ends.push_back(n * N / 16);
    const DeviceVector<std::int64_t> offsets(ends);
    line("short_conv forward, 3072 channels", 4 * count, [&](int) {
      cuda::short_conv_forward(context, {x.view(), weight.view(), y.view(), offsets.span(), {}, {}, {}});
    });
    line("short_conv backward", 6 * count, [&](int) {
      cuda::short_conv_backward(context,
                                {x.view(), weight.view(), y.view(), dx.view(), dweight.view(), offsets.span(), {}, {}},
                                space.bytes());
    });
    const std::int64_t R = 128;
    std::vector<std::int64_t> ones;
    for (std::int64_t n = 0; n <= R; ++n) ones.push_back(n);
    const DeviceVector<std::int64_t> steps(ones);
    const Area state = noise(kF32, {8 * R, 3, channels});
    std::vector<DeviceVector<std::int64_t>> slots;
    for (int i = 0; i < 8; ++i) {
      std::vector<std::int64_t> some;
      for (std::int64_t n = 0; n < R; ++n) some.push_back(i * R + n);
      slots.emplace_back(some);
    }
    line("short_conv of 128 single tokens", static_cast<double>(R * channels) * (4 + 24), [&](int i) {
      TensorView few = x.view();
      few.shape = {R, channels};
      TensorView out = y.view();
      out.shape = few.shape;
      cuda::short_conv_forward(
          context,
          {few, weight.view(), out, steps.span(), state.view(), slots[static_cast<std::size_t>(i)].span(), {}});
    });
  }
  {
    const std::int64_t HV = 6;
    const Area projected = noise(kBF16, {N, 64});
    const Area d_projected = noise(kBF16, {N, 64});
    const Area g = noise(kF32, {N, HV});
    const Area beta = noise(kF32, {N, HV});
    const Area lambda = noise(kF32, {N, HV});
    const Area vectors = noise(kF32, {HV});
    const Area bias = noise(kF32, {1});
    GatesForward in;
    in.a = columns(projected.view(), 0, HV);
    in.b = columns(projected.view(), HV, HV);
    in.l = columns(projected.view(), 2 * HV, HV);
    in.A_log = in.dt_bias = vectors.view();
    in.lambda_bias = bias.view();
    in.g = g.view();
    in.beta = beta.view();
    in.lambda = lambda.view();
    const GatesBackward back{in,
                             g.view(),
                             beta.view(),
                             lambda.view(),
                             columns(d_projected.view(), 0, HV),
                             columns(d_projected.view(), HV, HV),
                             columns(d_projected.view(), 2 * HV, HV),
                             vectors.view(),
                             vectors.view(),
                             bias.view()};
    line("gates forward, 6 heads", 18.0 * N * HV, [&](int) { cuda::gates_forward(context, in); });
    line("gates backward", 36.0 * N * HV, [&](int) { cuda::gates_backward(context, back, space.bytes()); });
  }
  {
    const std::int64_t vocabulary = 32000;
    for (const DType dtype : {kBF16, kF32}) {
      const std::int64_t rows = 8192;
      const Area logits = noise(dtype, {rows, vocabulary});
      const Area loss = noise(kF32, {rows});
      const DeviceVector<std::int32_t> targets(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 17));
      const double bytes = static_cast<double>(rows * vocabulary) * static_cast<double>(size_of(dtype));
      line(dtype == kBF16 ? "cross_entropy with gradient, 32000 bf16" : "cross_entropy with gradient, 32000 f32",
           2 * bytes, [&](int) {
             cuda::cross_entropy(context, {logits.view(), targets.span(), floats_of(loss), {}, true, 1e-4F});
           });
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(N));
    Random random(9);
    for (std::int32_t& id : ids) {
      // About as skewed as text: small ids far more often.
      id = static_cast<std::int32_t>(std::pow(32000.0, random.uniform())) - 1;
    }
    const DeviceVector<std::int32_t> dev_ids(ids);
    const Area table = noise(kBF16, {vocabulary, D});
    const Area dtable = noise(kF32, {vocabulary, D});
    const Area y = noise(kF32, {N, D});
    line("embedding forward, bf16 table to f32", 6 * ND, [&](int) {
      cuda::embedding_forward(context, {dev_ids.span(), table.view(), y.view()});
    });
    const EmbeddingBackward back{dev_ids.span(), y.view(), dtable.view()};
    const DeviceBuffer sorting(cuda::embedding_backward_workspace(back));
    line("embedding backward, f32 (bytes of dy)", 4 * ND,
         [&](int) { cuda::embedding_backward(context, back, sorting.bytes()); });
  }
  {
    const std::int64_t count = 200'000'000;
    const Area p = noise(kF32, {count}, 0.02F);
    const Area m = noise(kF32, {count}, 1e-3F);
    const Area v(kF32, {count});
    const Area g = noise(kF32, {count}, 1e-3F);
    const Area rounded = noise(kBF16, {count});
    const DeviceVector<cuda::Clipping> clipping(std::vector<cuda::Clipping>(1));
    line("clip_gradients, 200 million", 4.0 * static_cast<double>(count),
         [&](int) { cuda::clip_gradients(context, floats_of(g), 1.0F, clipping.span().data(), space.bytes()); });
    cuda::AdamWDevice args;
    args.args.parameters = floats_of(p);
    args.args.m = floats_of(m);
    args.args.v = floats_of(v);
    args.args.gradients = floats_of(g);
    args.clipping = clipping.span().data();
    args.rounded = {reinterpret_cast<BFloat16*>(rounded.view().data), static_cast<std::size_t>(count)};
    line("adamw with bf16 copy", 30.0 * static_cast<double>(count), [&](int) { cuda::adamw(context, args); });
  }
  for (const std::int64_t R : {128, 16, 1}) {
    const std::int64_t H = 6;
    const std::int64_t K = 128;
    const std::int64_t V = 256;
    const Area states = noise(kF32, {8 * R, H, K, V});
    const Area q = noise(kBF16, {R, H, K});
    const Area k = noise(kBF16, {R, H, K});
    const Area v = noise(kBF16, {R, H, V});
    const Area o = noise(kBF16, {R, H, V});
    const Area gates(kF32, {R, H});
    std::vector<DeviceVector<std::int64_t>> index;
    for (int i = 0; i < 8; ++i) {
      std::vector<std::int64_t> some;
      for (std::int64_t r = 0; r < R; ++r) some.push_back((r * 8 + i) % (8 * R));
      index.emplace_back(some);
    }
    line("recurrence_step, " + std::to_string(R) + " x 6 x 128 x 256", 8.0 * static_cast<double>(R * H * K * V),
         [&](int i) {
           RecurrenceStep args;
           args.scale = 0.1F;
           args.qk_l2norm = true;
           args.q = q.view();
           args.k = k.view();
           args.v = v.view();
           args.o = o.view();
           args.g = args.beta = args.lambda = gates.view();
           args.states = states.view();
           args.index = ConstTensorView(
               reinterpret_cast<const std::byte*>(index[static_cast<std::size_t>(i)].span().data()), DType::i64, {R});
           cuda::recurrence_step(context, args);
         });
  }
  {
    const std::int64_t vocabulary = 32000;
    for (const std::int64_t R : {1, 128}) {
      const Area logits = noise(kBF16, {8 * R, vocabulary}, 3.0F);
      const DeviceVector<std::int32_t> tokens(std::vector<std::int32_t>(static_cast<std::size_t>(R)));
      const DeviceVector<std::uint64_t> draws(std::vector<std::uint64_t>(static_cast<std::size_t>(R)));
      const auto run = [&](const std::string& name, const SamplingOptions& options) {
        line("sample " + std::to_string(R) + " of 32000, " + name, 2.0 * static_cast<double>(R * vocabulary),
             [&](int i) {
               TensorView some = logits.view();
               some.data += i * R * vocabulary * 2;
               some.shape = {R, vocabulary};
               cuda::sample(context, {some, tokens.span(), options, {}, draws.span(), {}});
             });
      };
      run("argmax", {0.0F, 0, 1.0F, 0.0F, 1.0F, 0});
      run("plain", {0.8F, 0, 1.0F, 0.0F, 1.0F, 0});
      run("top-k 50", {0.8F, 50, 1.0F, 0.0F, 1.0F, 0});
      run("top-p 0.95", {0.8F, 0, 0.95F, 0.0F, 1.0F, 0});
      run("both", {0.8F, 50, 0.95F, 0.0F, 1.0F, 0});
    }
  }
  {
    double best = 1;
    {
      const std::int64_t size = 8192;
      const Area a = noise(kBF16, {size, size});
      const Area b = noise(kBF16, {size, size});
      const Area c(kBF16, {size, size});
      const double flop = 2.0 * static_cast<double>(size) * static_cast<double>(size * size);
      const auto work = [&](int) { cuda::linear_forward(context, {a.view(), b.view(), c.view(), {}}); };
      best = flop / microseconds(work) * 1e-6;
      std::printf("matrix product of 8192 in bf16: %.0f TFLOP/s\n", best);
    }
    struct Case {
      const char* name;
      std::int64_t rows, in, out;
    };
    for (const Case& n : {Case{"projections", N, D, 4640},
                          {"out", N, 1536, D},
                          {"gate_up", N, D, 5632},
                          {"down", N, 2816, D},
                          {"head, 2048 rows", 2048, D, 32000}}) {
      const Area x = noise(kBF16, {n.rows, n.in});
      const Area w = noise(kBF16, {n.out, n.in}, 0.03F);
      const Area y = noise(kBF16, {n.rows, n.out});
      const Area y32 = noise(kF32, {n.rows, n.out});
      const Area dx = noise(kBF16, {n.rows, n.in});
      const Area dw = noise(kF32, {n.out, n.in});
      const double flop = 2.0 * static_cast<double>(n.rows) * static_cast<double>(n.in * n.out);
      const std::string name = std::string("linear ") + n.name;
      matrix_line(name + " y", flop, best, [&](int) {
        cuda::linear_forward(context, {x.view(), w.view(), y.view(), {}});
      });
      if (n.out == D) {
        matrix_line(name + " y += in f32", flop, best, [&](int) {
          cuda::linear_forward(context, {x.view(), w.view(), y32.view(), y32.view()});
        });
      }
      matrix_line(name + " dx", flop, best, [&](int) {
        cuda::linear_backward(context, {x.view(), w.view(), y.view(), dx.view(), {}, false});
      });
      matrix_line(name + " dw", flop, best, [&](int) {
        cuda::linear_backward(context, {x.view(), w.view(), y.view(), {}, dw.view(), false});
      });
    }
    for (const std::int64_t rows : {1, 4, 5, 16, 128}) {
      // Eight matrices, so that they do not stay in the cache.
      const std::int64_t out = 5632;
      const Area x = noise(kBF16, {rows, 2048});
      const Area w = noise(kBF16, {8 * out, 2048}, 0.03F);
      const Area y = noise(kBF16, {rows, out});
      line("linear of " + std::to_string(rows) + " rows, 2048 to 5632", 2.0 * 2048 * static_cast<double>(out),
           [&](int i) {
             TensorView some = w.view();
             some.data += i * out * 2048 * 2;
             some.shape = {out, 2048};
             cuda::linear_forward(context, {x.view(), some, y.view(), {}});
           });
    }
  }
}

}  // namespace
}  // namespace qdelta::testing

int main() {
  if (!qdelta::testing::have_device()) {
    std::printf("there is no CUDA device on this machine\n");
    return 0;
  }
  qdelta::testing::measure();
}
