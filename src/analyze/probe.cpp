#include "analyze/probe.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/mixer_types.h"
#include "model/recurrence_mixer.h"

namespace qdelta::analyze {
namespace {

// Tokens that go through the model at a time; the state carries over.
constexpr std::int64_t kPiece = 512;

// A matrix of the device, as floats.
std::vector<float> downloaded(const Device& device, const ConstTensorView& matrix) {
  const std::int64_t rows = matrix.extent(0);
  const std::int64_t width = matrix.extent(1);
  const std::int64_t step = matrix.step(0);
  std::vector<std::byte> bytes(static_cast<std::size_t>(((rows - 1) * step + width)) * size_of(matrix.dtype));
  download(device, bytes.data(), matrix.data, bytes.size());
  ConstTensorView here = matrix;
  here.data = bytes.data();
  const Tensor floats = converted(here, DType::f32);
  const std::span<const float> values = floats.as<float>();
  return {values.begin(), values.end()};
}

// Columns [begin, begin + width) of a row-major matrix of `total` columns, appended.
void append_columns(const std::vector<float>& matrix, std::int64_t total, std::int64_t begin, std::int64_t width,
                    std::vector<float>& to) {
  for (auto row = matrix.begin(); row != matrix.end(); row += total) {
    to.insert(to.end(), row + begin, row + begin + width);
  }
}

void append(const Device& device, const ConstTensorView& matrix, std::vector<float>& to) {
  const std::vector<float> values = downloaded(device, matrix);
  to.insert(to.end(), values.begin(), values.end());
}

// A gate that the rule does not read is zero, whatever its memory holds.
void append_gate(const Device& device, bool read, const ConstTensorView& matrix, std::vector<float>& to) {
  if (read) return append(device, matrix, to);
  to.resize(to.size() + static_cast<std::size_t>(matrix.shape.elements()));
}

// A trace without tokens yet; throws where the layer has no recurrence.
LayerTrace empty_trace(const ModelConfig& c, std::int64_t layer) {
  const std::string& type = c.layer_type(layer);
  const auto rule = rule_from_name(type);
  require(rule.has_value(), "layer {}: {} has no keys and queries: there is nothing of it to analyse", layer,
          mixer_type(type).title);
  LayerTrace trace;
  trace.layer = layer;
  trace.rule = *rule;
  trace.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  trace.q_heads = c.num_heads;
  trace.v_heads = c.value_heads();
  trace.key_dim = c.head_dim;
  trace.value_dim = c.value_dim();
  trace.offsets = {0};
  return trace;
}

void append_activations(const Device& device, const RecurrenceActivations& a, LayerTrace& trace) {
  const std::int64_t key = trace.q_heads * trace.key_dim;
  const std::int64_t value = trace.v_heads * trace.value_dim;
  const std::int64_t total = 2 * key + value;
  const std::vector<float> qkv = downloaded(device, a.qkv);
  append_columns(qkv, total, 0, key, trace.q);
  append_columns(qkv, total, key, key, trace.k);
  append_columns(qkv, total, 2 * key, value, trace.v);
  append(device, a.g, trace.g);
  append_gate(device, traits_of(trace.rule).reads_beta, a.beta, trace.beta);
  append_gate(device, traits_of(trace.rule).reads_lambda, a.lambda, trace.lambda);
  append(device, a.o, trace.o);
}

}  // namespace

std::vector<LayerTrace> probe(const LanguageModel& model, const Device& device, const Sequences& sequences,
                              const std::vector<std::int64_t>& layers, const std::atomic<bool>& stop,
                              const std::function<void(std::int64_t)>& progress) {
  const ModelConfig& c = model.config();
  std::vector<LayerTrace> traces;
  for (const std::int64_t layer : layers) {
    traces.push_back(empty_trace(c, layer));
    require(traces.back().rule == traces.front().rule,
            "layer {} is {}, layer {} is {}: choose layers of one rule (--layers)", traces.front().layer,
            traits_of(traces.front().rule).title, layer, traits_of(traces.back().rule).title);
  }
  const auto observe = [&](std::size_t layer, const BlockActivations& block) {
    const auto found = std::find(layers.begin(), layers.end(), static_cast<std::int64_t>(layer));
    if (found == layers.end()) return;
    const RecurrenceActivations* a = recurrence_activations(block);
    require(a != nullptr, "layer {} has no recurrence", layer);
    append_activations(device, *a, traces[static_cast<std::size_t>(found - layers.begin())]);
  };
  ModelRunner runner(model, device);
  ModelStates states(c, 1, device);
  const std::vector<std::int64_t> slots{0};
  std::int64_t done = 0;
  for (const std::vector<std::int32_t>& sequence : sequences) {
    states.clear(0);
    const auto length = static_cast<std::int64_t>(sequence.size());
    for (std::int64_t begin = 0; begin < length; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, length - begin);
      const std::vector<std::int64_t> offsets{0, count};
      runner.observe(
          {std::span(sequence).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)), offsets},
          observe, {&states, slots});
      done += count;
      progress(done);
      if (stop) return {};
    }
    for (LayerTrace& trace : traces) trace.offsets.push_back(done);
  }
  return traces;
}

}  // namespace qdelta::analyze
