#include "bench/op_bench.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "bench/machine_limits.h"
#include "bench/op_work.h"
#include "core/memory.h"
#include "core/random.h"
#include "core/threads.h"
#include "kernels/recurrence.h"

namespace qdelta::bench {
namespace {

struct HeadShape {
  std::int64_t heads, K, V;
};

HeadShape parse_shape(const std::string& text) {
  HeadShape shape{};
  const char* at = text.data();
  const char* end = at + text.size();
  for (std::int64_t* field : {&shape.heads, &shape.K, &shape.V}) {
    const auto [next, error] = std::from_chars(at, end, *field);
    const bool last = field == &shape.V;
    const bool separator = next != end && *next == 'x';
    require(error == std::errc() && *field > 0 && (last ? next == end : separator),
            "'{}' is no shape; expected HEADSxKxV such as 32x128x128", text);
    at = last ? next : next + 1;
  }
  return shape;
}

// Random inputs of one shape, as training would give them, on a device: q and k to be normalised, gates in their usual
// ranges, and no state before the first token.
class Case {
 public:
  Case(const OpBenchOptions& options, const HeadShape& s, std::int64_t T)
      : device_(options.device),
        dtype_(options.dtype),
        keys_{options.batch, T, s.heads, s.K},
        values_{options.batch, T, s.heads, s.V},
        gates_{options.batch, T, s.heads},
        states_{options.batch, s.heads, s.K, s.V},
        random_(static_cast<std::uint64_t>(T)) {
    in.rule = options.rule;
    in.scale = 1.0F / std::sqrt(static_cast<float>(s.K));
    in.qk_l2norm = true;
    in.q = q.view();
    in.k = k.view();
    in.v = v.view();
    in.g = g.view();
    in.beta = beta.view();
    in.lambda = lambda.view();
  }

  [[nodiscard]] RecurrenceForward forward(const Execution& run) {
    RecurrenceForward args;
    args.in = in;
    args.o = o.view();
    args.run = run;
    return args;
  }
  [[nodiscard]] RecurrenceBackward backward(const Execution& run, const ConstTensorView& chunk_states) {
    RecurrenceBackward args;
    args.in = in;
    args.d_o = d_o.view();
    args.chunk_states = chunk_states;
    args.dq = dq.view();
    args.dk = dk.view();
    args.dv = dv.view();
    args.dg = dg.view();
    args.dbeta = dbeta.view();
    args.dlambda = dlambda.view();
    args.run = run;
    return args;
  }
  // One token of each sequence, in place on `pool`.
  [[nodiscard]] RecurrenceStep step(const TensorView& pool) {
    const auto rows = [](const auto& view) {  // [batch, 1, heads, ...] as [batch, heads, ...]
      const Shape shape = view.shape.rank == 4 ? Shape{view.extent(0), view.extent(2), view.extent(3)}
                                               : Shape{view.extent(0), view.extent(2)};
      return std::remove_cvref_t<decltype(view)>(view.data, view.dtype, shape);
    };
    RecurrenceStep args;
    args.rule = in.rule;
    args.scale = in.scale;
    args.qk_l2norm = true;
    args.q = rows(in.q);
    args.k = rows(in.k);
    args.v = rows(in.v);
    args.g = rows(in.g);
    args.beta = rows(in.beta);
    args.lambda = rows(in.lambda);
    args.states = pool;
    args.o = rows(o.view());
    return args;
  }

 private:
  template <class Make>
  DeviceTensor filled(DType dtype, const Shape& shape, const Make& make) {
    Tensor host(DType::f32, shape);
    for (float& value : host.as<float>()) value = make();
    if (dtype != DType::f32) host = converted(host.view(), dtype);
    DeviceTensor tensor(device_, dtype, shape);
    upload(device_, tensor.view().data, host.data(), host.bytes());
    return tensor;
  }
  DeviceTensor normal(DType dtype, const Shape& shape) {
    return filled(dtype, shape, [&] { return random_.normal(); });
  }
  DeviceTensor gate() {
    return filled(DType::f32, gates_, [&] { return 1.0F / (1.0F + std::exp(-random_.normal())); });
  }
  [[nodiscard]] DeviceTensor empty(DType dtype, const Shape& shape) const { return {device_, dtype, shape}; }

  Device device_;
  DType dtype_;
  Shape keys_, values_, gates_, states_;
  Random random_;

 public:
  DeviceTensor q = normal(dtype_, keys_), k = normal(dtype_, keys_), v = normal(dtype_, values_);
  DeviceTensor g = filled(DType::f32, gates_, [&] { return -0.1F * std::abs(random_.normal()); });
  DeviceTensor beta = gate(), lambda = gate(), h0 = normal(DType::f32, states_);
  DeviceTensor d_o = normal(dtype_, values_);
  DeviceTensor o = empty(dtype_, values_), ht = empty(DType::f32, states_);
  DeviceTensor dq = empty(dtype_, keys_), dk = empty(dtype_, keys_), dv = empty(dtype_, values_);
  DeviceTensor dg = empty(DType::f32, gates_), dbeta = empty(DType::f32, gates_), dlambda = empty(DType::f32, gates_);
  RecurrenceInputs in;
};

Tensor on_host(const Device& device, const DeviceTensor& tensor) {
  Tensor host(tensor.view().dtype, tensor.shape());
  download(device, host.data(), tensor.view().data, host.bytes());
  return host;
}

double relative_error(const Tensor& a, const Tensor& b) {
  double difference = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    const double x = element_as_double(a.view(), i);
    const double y = element_as_double(b.view(), i);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

// Times ops of one device, beside its limits.
class Stopwatch {
 public:
  explicit Stopwatch(const Device& device) : device_(device), products_(matrix_rate(device)) {}

  // On a GPU: its own time, as one of many in a graph, so that launches do not count.
  [[nodiscard]] Timing time(const std::function<void()>& work, int min_calls = 5, double min_seconds = 0.3) const {
    if (device_.gpu == nullptr) return measure(work, min_calls, min_seconds);
    constexpr int kCalls = 20;
    CapturedGraph graph(device_, [&] {
      for (int call = 0; call < kCalls; ++call) work();
    });
    graph.replay();
    Timing timing = measure([&] {
      graph.replay();
      synchronize(device_);
    });
    timing.best /= kCalls;
    timing.median /= kCalls;
    return timing;
  }
  // What the work would take at the limits, and whether that can be believed. `memory` is of as many bytes.
  void compare(const OpWork& work, const Limit& memory, OpBenchRow& row) const {
    row.memory_rate = memory.rate;
    row.bytes_floor = work.bytes / memory.rate;
    row.flop_floor = work.flop / products_.rate;
    row.doubt = row.bytes_floor > row.flop_floor ? doubt_of(row.timing, work.bytes / row.timing.median, memory)
                                                 : doubt_of(row.timing, work.flop / row.timing.median, products_);
  }
  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] double matrix_flop_per_s() const { return products_.rate; }

 private:
  Device device_;
  Limit products_;
};

OpShape shape_of(const OpBenchOptions& options, const HeadShape& s, std::int64_t T) {
  return {options.rule, options.batch, T, s.heads, s.K, s.V, size_of(options.dtype)};
}

// What the forward should give: chunks on the CPU, with products in float32.
Tensor forward_in_float32(const Device& device, Case& data) {
  const Tensor q = on_host(device, data.q);
  const Tensor k = on_host(device, data.k);
  const Tensor v = on_host(device, data.v);
  const Tensor g = on_host(device, data.g);
  const Tensor beta = on_host(device, data.beta);
  const Tensor lambda = on_host(device, data.lambda);
  Tensor o(DType::f32, v.shape());
  RecurrenceForward args = data.forward({.form = Form::chunk, .chunk = kDefaultChunk, .bf16_products = false});
  args.in.q = q.view();
  args.in.k = k.view();
  args.in.v = v.view();
  args.in.g = g.view();
  args.in.beta = beta.view();
  args.in.lambda = lambda.view();
  args.o = o.view();
  const Device host{.threads = device.threads};
  Workspace workspace(host);
  recurrence_forward(host, args, workspace);
  return o;
}

OpBenchRow bench_step(const OpBenchOptions& options, const HeadShape& s, const Stopwatch& watch) {
  const Device& device = watch.device();
  Case data(options, s, 1);
  DeviceTensor pool(device, DType::f32, data.h0.shape());
  copy_on_device(device, pool.view().data, data.h0.view().data, pool.bytes());
  const RecurrenceStep step = data.step(pool.view());
  Workspace workspace(device);
  recurrence_step(device, step, workspace);
  OpBenchRow row{.op = "step", .heads = s.heads, .K = s.K, .V = s.V, .tokens = 1};
  RecurrenceForward forward = data.forward({.form = Form::chunk, .chunk = kDefaultChunk, .bf16_products = false});
  forward.in.h0 = data.h0.view();
  forward.ht = data.ht.view();
  recurrence_forward(device, forward, workspace);
  row.error = relative_error(on_host(device, pool), on_host(device, data.ht));

  const Limit memory = update_bandwidth(device, pool.bytes());
  row.timing = watch.time([&] { recurrence_step(device, step, workspace); }, 200, 0.2);
  const OpWork work = work_of::step(shape_of(options, s, 1));
  row.us_per_token = row.timing.median * 1e6 / static_cast<double>(options.batch);
  row.rate = work.bytes / row.timing.median;
  watch.compare(work, memory, row);
  return row;
}

void bench_sequence(const OpBenchOptions& options, const HeadShape& s, std::int64_t T, const Stopwatch& watch,
                    const std::function<void(const OpBenchRow&)>& report) {
  const Device& device = watch.device();
  Case data(options, s, T);
  const Execution run{.chunk = options.chunk};
  Workspace workspace(device);
  const OpShape shape = shape_of(options, s, T);
  // Of fewer bytes the time would be that of starting threads.
  constexpr double kFewestBytes = 16 << 20;
  const Limit memory =
      update_bandwidth(device, static_cast<std::size_t>(std::max(kFewestBytes, work_of::forward(shape, 1).bytes)));
  const auto row = [&](const char* op, int length, const OpWork& work, const Timing& timing, double error) {
    OpBenchRow result{.op = op,
                      .heads = s.heads,
                      .K = s.K,
                      .V = s.V,
                      .tokens = T,
                      .chunk = length,
                      .timing = timing,
                      .us_per_token = timing.median * 1e6 / static_cast<double>(T * options.batch),
                      .rate = work.flop / timing.median,
                      .error = error};
    watch.compare(work, memory, result);
    report(result);
  };

  const Tensor expected = forward_in_float32(device, data);
  RecurrenceForward forward = data.forward(run);
  recurrence_forward(device, forward, workspace);
  const double error = relative_error(on_host(device, data.o), expected);
  const int forward_tokens = resolve(device, forward).tokens;
  row("forward", forward_tokens, work_of::forward(shape, forward_tokens),
      watch.time([&] { recurrence_forward(device, forward, workspace); }), error);

  // The backward as training runs it: the forward has left the states on entry to the chunks. The values of the
  // gradients are the tests' business: the reference takes minutes at these lengths.
  DeviceTensor chunk_states(device, device.gpu == nullptr ? DType::f32 : options.dtype,
                            {recurrence_chunk_count(data.in, run), s.heads, s.K, s.V});
  forward.chunk_states = chunk_states.view();
  RecurrenceBackward backward = data.backward(run, chunk_states.view());
  DeviceBuffer saved(device,
                     recurrence_saved_bytes(device, data.in.rule, recurrence_chunk_count(data.in, run) * s.heads, s.V));
  forward.saved = {saved.data(), saved.size()};
  backward.saved = forward.saved;
  recurrence_forward(device, forward, workspace);
  const int chunk = resolve(device, backward).tokens;
  row("backward", chunk, work_of::backward(shape, chunk),
      watch.time([&] { recurrence_backward(device, backward, workspace); }), 0);
  const Timing both = watch.time([&] {
    recurrence_forward(device, forward, workspace);
    recurrence_backward(device, backward, workspace);
  });
  row("training", chunk, work_of::forward(shape, chunk) + work_of::backward(shape, chunk), both, 0);
}

}  // namespace

OpBenchReport run_op_bench(const OpBenchOptions& options, const std::function<void(const OpBenchRow&)>& progress) {
  OpBenchReport report;
  require(options.batch > 0, "--batch is {}: a benchmark needs at least one sequence", options.batch);
  report.threads = thread_count(options.device.threads);
  const Stopwatch watch(options.device);
  report.matrix_rate = watch.matrix_flop_per_s();
  const auto add = [&](const OpBenchRow& row) {
    report.rows.push_back(row);
    progress(row);
  };
  for (const std::string& text : options.shapes) {
    const HeadShape shape = parse_shape(text);
    for (const std::int64_t T : options.tokens) {
      require(T > 0, "a benchmark needs at least one token, not {}", T);
      if (T == 1) {
        add(bench_step(options, shape, watch));
      } else {
        bench_sequence(options, shape, T, watch, add);
      }
    }
  }
  return report;
}

}  // namespace qdelta::bench
