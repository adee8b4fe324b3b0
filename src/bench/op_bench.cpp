#include "bench/op_bench.h"

#include <charconv>
#include <cmath>

#include "bench/machine_limits.h"
#include "core/memory.h"
#include "core/random.h"
#include "core/threads.h"
#include "kernels/kernels.h"

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

template <class Make>
Tensor filled(DType dtype, const Shape& shape, const Make& make) {
  Tensor tensor(DType::f32, shape);
  for (float& value : tensor.as<float>()) value = make();
  return dtype == DType::f32 ? std::move(tensor) : converted(tensor.view(), dtype);
}

// Random inputs of one shape, as a model would give them: normalised q and k, gates in their usual ranges.
struct Case {
  Tensor q, k, v, g, beta, lambda, h0, o, ht, d_o, d_ht, dq, dk, dv, dg, dbeta, dlambda, dh0, chunk_states;
  RecurrenceInputs in;

  Case(const OpBenchOptions& options, const HeadShape& s, std::int64_t T, std::uint64_t seed) {
    Random random(seed);
    const auto normal = [&] { return random.normal(); };
    const auto gate = [&] { return 1.0F / (1.0F + std::exp(-random.normal())); };
    const auto log_decay = [&] { return -0.1F * std::abs(random.normal()); };
    const Shape keys{1, T, s.heads, s.K};
    const Shape values{1, T, s.heads, s.V};
    const Shape gates{1, T, s.heads};
    const Shape states{1, s.heads, s.K, s.V};
    q = filled(options.dtype, keys, normal);
    k = filled(options.dtype, keys, normal);
    v = filled(options.dtype, values, normal);
    d_o = filled(options.dtype, values, normal);
    g = filled(DType::f32, gates, log_decay);
    beta = filled(DType::f32, gates, gate);
    lambda = filled(DType::f32, gates, gate);
    h0 = filled(DType::f32, states, normal);
    d_ht = filled(DType::f32, states, normal);
    o = Tensor(options.dtype, values);
    ht = Tensor(DType::f32, states);
    dq = Tensor(options.dtype, keys);
    dk = Tensor(options.dtype, keys);
    dv = Tensor(options.dtype, values);
    dg = Tensor(DType::f32, gates);
    dbeta = Tensor(DType::f32, gates);
    dlambda = Tensor(DType::f32, gates);
    dh0 = Tensor(DType::f32, states);
    in.rule = options.rule;
    in.scale = 1.0F / std::sqrt(static_cast<float>(s.K));
    in.qk_l2norm = true;
    in.q = q.view();
    in.k = k.view();
    in.v = v.view();
    in.g = g.view();
    in.beta = beta.view();
    in.lambda = lambda.view();
    in.h0 = h0.view();
  }

  [[nodiscard]] RecurrenceForward forward(const Execution& run) {
    RecurrenceForward args;
    args.in = in;
    args.o = o.view();
    args.ht = ht.view();
    args.run = run;
    return args;
  }
  [[nodiscard]] RecurrenceBackward backward(const Execution& run) {
    RecurrenceBackward args;
    args.in = in;
    args.d_o = d_o.view();
    args.d_ht = d_ht.view();
    args.chunk_states = chunk_states.view();
    args.dq = dq.view();
    args.dk = dk.view();
    args.dv = dv.view();
    args.dg = dg.view();
    args.dbeta = dbeta.view();
    args.dlambda = dlambda.view();
    args.dh0 = dh0.view();
    args.run = run;
    return args;
  }
};

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

// Keeps one buffer for all the calls of a run.
class Scratch {
 public:
  std::span<std::byte> of(std::size_t bytes) {
    if (buffer_.size() < bytes) buffer_ = AlignedBuffer(bytes);
    return {buffer_.data(), buffer_.size()};
  }

 private:
  AlignedBuffer buffer_;
};

OpBenchRow bench_step(const OpBenchOptions& options, const HeadShape& s, Scratch& scratch) {
  Case data(options, s, 1, 7);
  // The same one token as [R = 1, heads, width], in place on a pool of one state.
  const auto row_view = [](const ConstTensorView& view, const Shape& shape) {
    return ConstTensorView(view.data, view.dtype, shape);
  };
  Tensor pool = converted(data.h0.view(), DType::f32);
  Tensor out(options.dtype, {1, s.heads, s.V});
  RecurrenceStep args;
  args.rule = options.rule;
  args.scale = data.in.scale;
  args.qk_l2norm = true;
  args.q = row_view(data.q.view(), {1, s.heads, s.K});
  args.k = row_view(data.k.view(), {1, s.heads, s.K});
  args.v = row_view(data.v.view(), {1, s.heads, s.V});
  args.g = row_view(data.g.view(), {1, s.heads});
  args.beta = row_view(data.beta.view(), {1, s.heads});
  args.lambda = row_view(data.lambda.view(), {1, s.heads});
  args.states = pool.view();
  args.o = out.view();
  args.threads = options.threads;
  const std::span<std::byte> space = scratch.of(recurrence_workspace(args));
  OpBenchRow row{"step", s.heads, s.K, s.V, 1, 0, 0, 0, 0, 0};
  recurrence_step(args, space);
  RecurrenceForward reference = data.forward({Form::oracle, 0, 1});
  recurrence_forward(reference, {});
  row.error = relative_error(pool, data.ht);

  const auto bytes = static_cast<std::size_t>(s.heads * s.K * s.V) * sizeof(float);
  row.limit = update_bandwidth(bytes, options.threads);
  const double seconds = median_seconds([&] { recurrence_step(args, space); }, 200, 0.2);
  row.us_per_token = seconds * 1e6;
  row.rate = 2.0 * static_cast<double>(bytes) / seconds;
  return row;
}

void bench_sequence(const OpBenchOptions& options, const HeadShape& s, std::int64_t T, double limit, Scratch& scratch,
                    const std::function<void(const OpBenchRow&)>& report) {
  Case data(options, s, T, static_cast<std::uint64_t>(T));
  const Execution run{Form::chunk, options.chunk, options.threads};
  const int forward_chunk = options.dtype == DType::f32 ? kWalkBlock : kDefaultChunk;
  int chunk = options.chunk > 0 ? options.chunk : forward_chunk;
  const auto tokens = static_cast<double>(T);
  const auto heads = static_cast<double>(s.heads);
  const auto K = static_cast<double>(s.K);
  const auto V = static_cast<double>(s.V);

  OpBenchRow row{"forward", s.heads, s.K, s.V, T, chunk, 0, 0, limit, 0};
  const RecurrenceForward chunks = data.forward({Form::chunk, kDefaultChunk, options.threads, false});
  recurrence_forward(chunks, scratch.of(recurrence_workspace(chunks)));
  const Tensor expected = converted(data.o.view(), DType::f32);
  RecurrenceForward forward = data.forward(run);
  const std::span<std::byte> forward_space = scratch.of(recurrence_workspace(forward));
  recurrence_forward(forward, forward_space);
  row.error = relative_error(data.o, expected);
  double seconds = median_seconds([&] { recurrence_forward(forward, forward_space); });
  row.us_per_token = seconds * 1e6 / tokens;
  row.rate = chunk_forward_flop(K, V, chunk) * tokens * heads / seconds;
  report(row);

  // The backward as training runs it: the forward has left the states on entry to the chunks.
  data.chunk_states = Tensor(DType::f32, {recurrence_chunk_count(data.in, run), s.heads, s.K, s.V});
  forward.chunk_states = data.chunk_states.view();
  recurrence_forward(forward, scratch.of(recurrence_workspace(forward)));
  const RecurrenceBackward backward = data.backward(run);
  const std::span<std::byte> backward_space = scratch.of(recurrence_workspace(backward));
  row.op = "backward";
  chunk = options.chunk > 0 ? options.chunk : kDefaultChunk;
  row.chunk = chunk;
  row.error = 0;  // its values are the tests' business: the reference takes minutes at these lengths
  seconds = median_seconds([&] { recurrence_backward(backward, backward_space); });
  row.us_per_token = seconds * 1e6 / tokens;
  row.rate = chunk_backward_flop(K, V, chunk) * tokens * heads / seconds;
  report(row);
}

}  // namespace

OpBenchReport run_op_bench(const OpBenchOptions& options, const std::function<void(const OpBenchRow&)>& progress) {
  OpBenchReport report;
  report.threads = thread_count(options.threads);
  report.matrix_rate = matrix_rate(options.threads);
  Scratch scratch;
  const auto add = [&](const OpBenchRow& row) {
    report.rows.push_back(row);
    progress(row);
  };
  for (const std::string& text : options.shapes) {
    const HeadShape shape = parse_shape(text);
    for (const std::int64_t T : options.tokens) {
      require(T > 0, "a benchmark needs at least one token, not {}", T);
      if (T == 1) {
        add(bench_step(options, shape, scratch));
      } else {
        bench_sequence(options, shape, T, report.matrix_rate, scratch, add);
      }
    }
  }
  return report;
}

}  // namespace qdelta::bench
