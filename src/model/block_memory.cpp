#include "model/block_memory.h"

#include <cmath>
#include <vector>

#include "kernels/recurrence.h"
#include "kernels/selective_scan.h"
#include "model/block_views.h"

namespace qdelta {
namespace {

using block_views::take;
using block_views::take_rows;

void fill(const Device& device, const TensorView& view, const std::vector<float>& values) {
  upload(device, view.data, values.data(), values.size() * sizeof(float));
}

}  // namespace

std::int64_t kept_states(const ModelConfig& config, std::span<const std::int64_t> offsets) {
  if (config.mixer == Mixer::mamba) return scan_chunks(offsets.back());
  std::int64_t sum = 0;
  for (std::size_t n = 1; n < offsets.size(); ++n) sum += ceil_div(offsets[n] - offsets[n - 1], kDefaultChunk);
  return sum;
}

std::int64_t Batch::common_length() const {
  const std::int64_t length = offsets[1] - offsets[0];
  for (std::size_t n = 1; n + 1 < offsets.size(); ++n) {
    if (offsets[n + 1] - offsets[n] != length) return 0;
  }
  return length;
}

BlockActivations::BlockActivations(const ModelConfig& c, const BlockLayout& layout, const Device& device,
                                   std::int64_t rows, std::int64_t chunks, BumpAllocator& memory) {
  const DType dtype = device.activations;
  const bool mamba = c.mixer == Mixer::mamba;
  attn_inverse_rms = take(memory, {rows});
  projected = take_rows(memory, rows, layout.projected, dtype);
  mixed = take(memory, {rows, c.conv_channels()}, dtype);
  if (mamba) {
    low = take_rows(memory, rows, c.step_rank() + 2 * c.state_size, dtype);
    dt = take(memory, {rows, c.inner_width()}, dtype);
  } else {
    for (TensorView* gate : {&g, &beta, &lambda}) *gate = take(memory, {rows, c.value_heads()});
  }
  // The scan's states lose too much in bfloat16: its backward goes through many tokens from each.
  if (chunks > 0) chunk_states = take(memory, c.recurrent_states(chunks), mamba ? DType::f32 : dtype);
  if (chunks > 0 && !mamba) {
    const std::size_t bytes = recurrence_saved_bytes(device, c.rule, chunks * c.value_heads());
    saved = {memory.take<std::byte>(static_cast<std::int64_t>(bytes)), bytes};
  }
  o = take(memory, {rows, mamba ? c.inner_width() : c.value_width()}, dtype);
  middle = take(memory, {rows, c.hidden_size});
  mlp_inverse_rms = take(memory, {rows});
  gate_up = take(memory, {rows, 2 * c.mlp_width()}, dtype);
}

BlockScratch::BlockScratch(const ModelConfig& c, const BlockLayout& layout, DType dtype, std::int64_t rows,
                           bool backward, BumpAllocator& memory) {
  const bool mamba = c.mixer == Mixer::mamba;
  const std::int64_t HV = c.value_heads();
  normed = take(memory, {rows, c.hidden_size}, dtype);
  hidden = take(memory, {rows, c.mlp_width()}, dtype);
  if (!mamba) {
    head_out = take(memory, {rows, c.value_width()}, dtype);
    ones = take(memory, {c.conv_channels(), 1});
    fixed_g = take(memory, {1, HV});
    fixed_lambda = take(memory, {1, HV});
  }
  if (!backward) return;
  d_head_out = take(memory, {rows, mamba ? c.inner_width() : c.value_width()}, dtype);
  d_gate_up = take(memory, {rows, 2 * c.mlp_width()}, dtype);
  d_projected = take_rows(memory, rows, layout.projected, dtype);
  d_mixed = take(memory, {rows, c.conv_channels()}, dtype);
  if (dtype != DType::f32) d_stream = take(memory, {rows, c.hidden_size}, dtype);
  if (mamba) {
    d_low = take_rows(memory, rows, c.step_rank() + 2 * c.state_size, dtype);
    d_dt = take(memory, {rows, c.inner_width()}, dtype);
  } else {
    for (TensorView* gate : {&dg, &dbeta, &dlambda}) *gate = take(memory, {rows, HV});
    d_ones = take(memory, {c.conv_channels(), 1});
  }
}

// g = 0 without decay, RetNet's fixed decay per head; a fixed lambda.
void BlockScratch::fill_constants(const Device& device, const ModelConfig& c) const {
  // Its last columns belong to no projection.
  if (d_projected) {
    const auto floats = static_cast<std::size_t>(d_projected.extent(0) * d_projected.step(0));
    clear(device, d_projected.data, floats * size_of(d_projected.dtype));
  }
  if (c.mixer != Mixer::recurrence) return;
  const auto HV = static_cast<std::size_t>(c.value_heads());
  std::vector<float> g(HV);
  for (std::size_t head = 0; head < HV && c.rule == Rule::retnet; ++head) {
    g[head] = static_cast<float>(std::log1p(-std::exp2(-5.0 - static_cast<double>(head))));
  }
  fill(device, ones, std::vector<float>(static_cast<std::size_t>(ones.shape.elements()), 1.0F));
  fill(device, fixed_g, g);
  fill(device, fixed_lambda, std::vector<float>(HV, static_cast<float>(c.fixed_lambda.value_or(0))));
}

}  // namespace qdelta
