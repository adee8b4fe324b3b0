#include "model/parameters.h"

#include <algorithm>
#include <cmath>

#include "core/fingerprint.h"
#include "core/random.h"
#include "core/threads.h"

namespace qdelta {

TensorView Slot::in(std::span<float> array) const {
  if (!exists()) return {};
  return {reinterpret_cast<std::byte*>(array.data() + offset), DType::f32, shape};
}

ConstTensorView Slot::in(std::span<const float> array) const {
  if (!exists()) return {};
  return {reinterpret_cast<const std::byte*>(array.data() + offset), DType::f32, shape};
}

ConstTensorView Slot::matrix_in(const Weights& weights) const {
  if (weights.rounded == nullptr || !exists()) return in(weights.values);
  return {reinterpret_cast<const std::byte*>(weights.rounded + offset), DType::bf16, shape};
}

namespace {

// Gives out places one after the other.
class Placer {
 public:
  explicit Placer(std::vector<NamedSlot>& tensors) : tensors_(tensors) {}

  Slot tensor(const std::string& name, const Shape& shape) {
    end_ = round_up(end_, 16);
    return adjacent(name, shape);
  }
  // Right behind the last one.
  Slot adjacent(const std::string& name, const Shape& shape) {
    const Slot slot{end_, shape};
    end_ += shape.elements();
    tensors_.push_back({name, slot});
    return slot;
  }
  [[nodiscard]] std::int64_t end() const { return end_; }
  void skip(std::int64_t floats) { end_ += floats; }
  void align() { end_ = round_up(end_, 16); }

 private:
  std::vector<NamedSlot>& tensors_;
  std::int64_t end_ = 0;
};

void place_recurrence(const ModelConfig& c, const std::string& prefix, Placer& place, BlockLayout& block) {
  const std::int64_t D = c.hidden_size;
  const std::int64_t HV = c.value_heads();
  place.align();
  block.projections.offset = place.end();
  const auto project = [&](const char* name, std::int64_t width) {
    place.adjacent(prefix + "attn." + name + "_proj.weight", {width, D});
    const std::int64_t at = block.projected;
    block.projected += width;
    return at;
  };
  block.q_at = project("q", c.key_width());
  block.k_at = project("k", c.key_width());
  block.v_at = project("v", c.value_width());
  if (c.use_gate) block.gate_at = project("g", c.value_width());
  if (c.learns_decay()) block.a_at = project("a", HV);
  if (c.learns_beta()) block.b_at = project("b", HV);
  if (c.learns_lambda()) block.lambda_at = project("lamb", HV);
  const std::int64_t used = block.projected;
  block.projected = round_up(used, 8);
  place.skip((block.projected - used) * D);
  block.projections.shape = {block.projected, D};

  if (c.use_short_conv) {
    place.align();
    block.conv.offset = place.end();
    place.adjacent(prefix + "attn.q_conv1d.weight", {c.key_width(), 1, c.conv_size});
    place.adjacent(prefix + "attn.k_conv1d.weight", {c.key_width(), 1, c.conv_size});
    place.adjacent(prefix + "attn.v_conv1d.weight", {c.value_width(), 1, c.conv_size});
    block.conv.shape = {2 * c.key_width() + c.value_width(), c.conv_size};
  }
  if (c.learns_decay()) {
    block.A_log = place.tensor(prefix + "attn.A_log", {HV});
    block.dt_bias = place.tensor(prefix + "attn.dt_bias", {HV});
  }
  if (c.learns_lambda_bias()) block.lambda_bias = place.tensor(prefix + "attn.lamb_bias", {1});
  block.out_norm = place.tensor(prefix + "attn.o_norm.weight", {c.value_dim()});
  block.out = place.tensor(prefix + "attn.o_proj.weight", {D, c.value_width()});
}

void place_mamba(const ModelConfig& c, const std::string& prefix, Placer& place, BlockLayout& block) {
  const std::int64_t D = c.hidden_size;
  const std::int64_t inner = c.inner_width();
  const auto mixer = [&](const char* name, const Shape& shape) {
    return place.tensor(prefix + "mixer." + name, shape);
  };
  block.projected = 2 * inner;
  block.gate_at = inner;
  block.projections = mixer("in_proj.weight", {block.projected, D});
  block.conv = mixer("conv1d.weight", {inner, 1, c.conv_size});
  block.conv.shape = {inner, c.conv_size};
  block.conv_bias = mixer("conv1d.bias", {inner});
  block.low = mixer("x_proj.weight", {c.step_rank() + 2 * c.state_size, inner});
  block.dt = mixer("dt_proj.weight", {inner, c.step_rank()});
  block.dt_bias = mixer("dt_proj.bias", {inner});
  block.A_log = mixer("A_log", {inner, c.state_size});
  block.skip = mixer("D", {inner});
  block.out = mixer("out_proj.weight", {D, inner});
}

BlockLayout place_block(const ModelConfig& c, const std::string& prefix, Placer& place) {
  BlockLayout block;
  const std::int64_t D = c.hidden_size;
  block.attn_norm = place.tensor(prefix + (c.published_mamba() ? "norm.weight" : "attn_norm.weight"), {D});
  if (c.mixer == Mixer::mamba) {
    place_mamba(c, prefix, place, block);
  } else {
    place_recurrence(c, prefix, place, block);
  }
  if (c.use_mlp) {
    const std::int64_t F = c.mlp_width();
    block.mlp_norm = place.tensor(prefix + "mlp_norm.weight", {D});
    place.align();
    block.gate_up = {place.end(), {2 * F, D}};
    place.adjacent(prefix + "mlp.gate_proj.weight", {F, D});
    place.adjacent(prefix + "mlp.up_proj.weight", {F, D});
    block.down = place.tensor(prefix + "mlp.down_proj.weight", {D, F});
  }
  return block;
}

bool ends_with(const std::string& name, std::string_view end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

ParameterLayout::ParameterLayout(const ModelConfig& model) : config(model) {
  Placer place(tensors);
  const std::string root = config.published_mamba() ? "backbone." : "model.";
  embeddings = place.tensor(root + "embeddings.weight", {config.vocab_size, config.hidden_size});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    blocks.push_back(place_block(config, fmt::format("{}layers.{}.", root, i), place));
  }
  final_norm = place.tensor(root + (config.published_mamba() ? "norm_f.weight" : "norm.weight"), {config.hidden_size});
  head =
      config.tie_word_embeddings ? embeddings : place.tensor("lm_head.weight", {config.vocab_size, config.hidden_size});
  place.align();
  size = place.end();
}

std::int64_t ParameterLayout::parameters() const {
  std::int64_t sum = 0;
  for (const NamedSlot& tensor : tensors) sum += tensor.slot.shape.elements();
  return sum;
}

namespace {

// Every tensor has random numbers of its own, by its name: rules that have other tensors besides begin alike, and it
// does not matter who fills which.
void initialise_tensor(const ModelConfig& c, const std::string& name, std::uint64_t seed, std::span<float> values) {
  Random random(mixed_seed(seed, fingerprint_of({name})));
  const auto fill = [&](auto make) {
    for (float& value : values) value = static_cast<float>(make());
  };
  if (ends_with(name, "norm.weight") || ends_with(name, "norm_f.weight") || ends_with(name, "mixer.D")) {
    fill([] { return 1.0; });
  } else if (ends_with(name, "mixer.A_log")) {
    fill([&, n = std::int64_t{0}]() mutable { return std::log(1.0 + static_cast<double>(n++ % c.state_size)); });
  } else if (ends_with(name, "mixer.conv1d.weight") || ends_with(name, "mixer.conv1d.bias")) {
    fill([&] { return (2 * random.uniform() - 1) / std::sqrt(static_cast<double>(c.conv_size)); });
  } else if (ends_with(name, "mixer.dt_proj.weight")) {
    fill([&] { return (2 * random.uniform() - 1) / std::sqrt(static_cast<double>(c.step_rank())); });
  } else if (ends_with(name, "A_log")) {
    fill([&] { return std::log(16 * (1 - random.uniform())); });
  } else if (ends_with(name, "dt_bias") || ends_with(name, "mixer.dt_proj.bias")) {
    fill([&] {
      // The inverse of softplus, so that the step starts out as dt.
      const double dt = std::exp(std::log(0.001) + random.uniform() * (std::log(0.1) - std::log(0.001)));
      return dt + std::log(-std::expm1(-dt));
    });
  } else if (ends_with(name, "lamb_bias")) {
    fill([] { return kLambdaBias; });
  } else {
    fill([&] { return c.initializer_range * random.normal(); });
  }
}

}  // namespace

void initialise(const ParameterLayout& layout, std::uint64_t seed, std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0F);
  parallel_for(static_cast<std::int64_t>(layout.tensors.size()), thread_count(0), [&](std::int64_t i, int /*worker*/) {
    const NamedSlot& tensor = layout.tensors[static_cast<std::size_t>(i)];
    const auto begin = static_cast<std::size_t>(tensor.slot.offset);
    const auto count = static_cast<std::size_t>(tensor.slot.shape.elements());
    initialise_tensor(layout.config, tensor.name, seed, values.subspan(begin, count));
  });
}

}  // namespace qdelta
