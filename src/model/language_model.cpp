#include "model/language_model.h"

#include <algorithm>

namespace qdelta {

LanguageModel::LanguageModel(const ModelConfig& config)
    : layout_((config.check(), config)), storage_(static_cast<std::size_t>(layout_.size) * sizeof(float)) {
  for (const BlockLayout& block : layout_.blocks) blocks_.emplace_back(layout_.config, block);
}

ModelStates::ModelStates(const ModelConfig& c, std::int64_t count) {
  const std::int64_t channels = 2 * c.key_width() + c.value_width();
  const std::int64_t width = c.use_short_conv ? c.conv_size : 1;
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    conv.emplace_back(DType::f32, Shape{count, width - 1, channels});
    recurrent.emplace_back(DType::f32, Shape{count, c.value_heads(), c.head_dim, c.value_dim()});
  }
}

std::size_t ModelStates::bytes() const {
  std::size_t sum = 0;
  for (const Tensor& tensor : conv) sum += tensor.bytes();
  for (const Tensor& tensor : recurrent) sum += tensor.bytes();
  return sum;
}

namespace {

// The bytes of one slot of a pool.
std::span<std::byte> slot_of(Tensor& pool, std::int64_t slot) {
  const auto size = pool.bytes() / static_cast<std::size_t>(std::max<std::int64_t>(pool.shape()[0], 1));
  return {pool.data() + static_cast<std::size_t>(slot) * size, size};
}
std::span<const std::byte> slot_of(const Tensor& pool, std::int64_t slot) {
  const std::span<std::byte> bytes = slot_of(const_cast<Tensor&>(pool), slot);
  return {bytes.data(), bytes.size()};
}

}  // namespace

void ModelStates::clear(std::int64_t slot) {
  for (Tensor& pool : conv) std::ranges::fill(slot_of(pool, slot), std::byte{});
  for (Tensor& pool : recurrent) std::ranges::fill(slot_of(pool, slot), std::byte{});
}

void ModelStates::copy(const ModelStates& from, std::int64_t slot, std::int64_t to) {
  for (std::size_t i = 0; i < conv.size(); ++i) {
    std::ranges::copy(slot_of(from.conv[i], slot), slot_of(conv[i], to).begin());
    std::ranges::copy(slot_of(from.recurrent[i], slot), slot_of(recurrent[i], to).begin());
  }
}

namespace {

// Rows of logits that are in memory at a time.
constexpr std::int64_t kHeadRows = 256;

TensorView take(BumpAllocator& memory, const Shape& shape) {
  return {reinterpret_cast<std::byte*>(memory.take<float>(shape.elements())), DType::f32, shape};
}

TensorView rows_of(const TensorView& matrix, std::int64_t begin, std::int64_t count) {
  TensorView view = matrix;
  view.data += begin * matrix.step(0) * static_cast<std::int64_t>(sizeof(float));
  view.shape = {count, matrix.extent(1)};
  return view;
}

std::int64_t chunk_count(std::span<const std::int64_t> offsets) {
  std::int64_t sum = 0;
  for (std::size_t n = 1; n < offsets.size(); ++n) sum += ceil_div(offsets[n] - offsets[n - 1], kDefaultChunk);
  return sum;
}

BlockState state_of_block(const StateSlots& states, std::size_t block) {
  if (states.states == nullptr) return {};
  return {states.states->conv[block].view(), states.states->recurrent[block].view(), states.slots};
}

void grow(AlignedBuffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  buffer = AlignedBuffer();  // first, so that the two need not fit side by side
  buffer = AlignedBuffer(bytes, AlignedBuffer::Fill::none);
}

}  // namespace

// Views into the runner's memory for one shape. In training every block has activations of its own, or with
// recomputation only the residual stream on entry to it; otherwise all blocks share.
struct ModelRunner::Plan {
  std::int64_t rows;
  std::vector<TensorView> stream;  // the residual stream on entry to each block, and after the last
  std::vector<BlockActivations> blocks;
  BlockScratch scratch;
  TensorView inverse_rms, normed, d_stream, head;

  Plan(const LanguageModel& model, std::int64_t row_count, std::int64_t chunks, bool training, bool recompute,
       BumpAllocator& memory)
      : rows(row_count), scratch(model.config(), model.layout().blocks[0], rows, training, memory) {
    const ModelConfig& c = model.config();
    const auto layers = static_cast<std::size_t>(c.num_hidden_layers);
    const bool keeps = training && !recompute;
    for (std::size_t i = 0; i < (training ? layers + 1 : 2); ++i) stream.push_back(take(memory, {rows, c.hidden_size}));
    for (std::size_t i = 0; i < (keeps ? layers : 1); ++i) {
      blocks.emplace_back(c, model.layout().blocks[i], rows, training ? chunks : 0, memory);
    }
    inverse_rms = take(memory, {rows});
    normed = take(memory, {rows, c.hidden_size});
    d_stream = take(memory, {rows, c.hidden_size});
    head = take(memory, {std::min(rows, kHeadRows), c.vocab_size});
  }
  TensorView& stream_at(std::size_t layer) { return stream[stream.size() == 2 ? layer % 2 : layer]; }
  BlockActivations& block_at(std::size_t layer) { return blocks[blocks.size() == 1 ? 0 : layer]; }
};

ModelRunner::ModelRunner(const LanguageModel& model, const Device& device, bool recompute)
    : model_(model), device_(device), recompute_(recompute) {}
ModelRunner::~ModelRunner() = default;

std::size_t ModelRunner::activation_bytes(std::int64_t rows, std::int64_t sequences, bool training) const {
  BumpAllocator counter(nullptr);
  const std::int64_t chunks = sequences * ceil_div(ceil_div(rows, std::max<std::int64_t>(sequences, 1)), kDefaultChunk);
  (void)Plan(model_, rows, chunks, training, recompute_, counter);
  return counter.used();
}

void ModelRunner::plan(const ModelInput& input, bool training, const StateSlots& states) {
  require(!input.ids.empty(), "there are no tokens to run");
  require(!input.offsets.empty() && input.offsets.front() == 0 &&
              input.offsets.back() == static_cast<std::int64_t>(input.ids.size()),
          "the offsets of the sequences do not span the {} tokens", input.ids.size());
  const auto rows = static_cast<std::int64_t>(input.ids.size());
  const std::int64_t chunks = chunk_count(input.offsets);
  BumpAllocator counter(nullptr);
  (void)Plan(model_, rows, chunks, training, recompute_, counter);
  grow(memory_, counter.used());
  BumpAllocator memory(memory_.data());
  plan_ = std::make_unique<Plan>(model_, rows, chunks, training, recompute_, memory);
  const std::size_t workspace = model_.blocks()[0].recurrence_workspace(
      device_, {input.offsets}, plan_->block_at(0), plan_->scratch, state_of_block(states, 0), training);
  grow(recurrence_memory_, workspace);
  plan_->scratch.recurrence = {recurrence_memory_.data(), recurrence_memory_.size()};
}

void ModelRunner::run_blocks(const ModelInput& input, bool training, const StateSlots& states) {
  plan(input, training, states);
  const std::span<const float> parameters = model_.parameters();
  const auto layers = model_.blocks().size();
  embedding_forward(device_, {input.ids, model_.layout().embeddings.in(parameters), plan_->stream_at(0)});
  for (std::size_t i = 0; i < layers; ++i) {
    BlockActivations& a = plan_->block_at(i);
    a.x = plan_->stream_at(i);
    model_.blocks()[i].forward(device_, parameters, {input.offsets}, a, plan_->scratch, plan_->stream_at(i + 1),
                               state_of_block(states, i));
  }
  rms_norm_forward(device_, {plan_->stream_at(layers), model_.layout().final_norm.in(parameters), plan_->normed,
                             plan_->inverse_rms, static_cast<float>(model_.config().norm_eps)});
}

void ModelRunner::logits(const ModelInput& input, const TensorView& out, const StateSlots& states) {
  run_blocks(input, false, states);
  linear_forward(device_, {plan_->normed, model_.layout().head.in(model_.parameters()), out, false});
}

void ModelRunner::last_logits(const ModelInput& input, const TensorView& out, const StateSlots& states) {
  run_blocks(input, false, states);
  const auto sequences = static_cast<std::int64_t>(input.offsets.size()) - 1;
  // The last rows, side by side; the stream is free by now. An empty sequence has no last token to speak of.
  const TensorView last = rows_of(plan_->d_stream, 0, sequences);
  for (std::int64_t n = 0; n < sequences; ++n) {
    require(input.offsets[n + 1] > input.offsets[n], "sequence {} has no tokens", n);
    copy_rows(device_, {rows_of(plan_->normed, input.offsets[n + 1] - 1, 1), rows_of(last, n, 1)});
  }
  linear_forward(device_, {last, model_.layout().head.in(model_.parameters()), out, false});
}

void ModelRunner::losses(const ModelInput& input, std::span<const std::int32_t> targets, std::span<float> out,
                         std::span<std::int32_t> best, const StateSlots& states) {
  run_blocks(input, false, states);
  const ConstTensorView head = model_.layout().head.in(model_.parameters());
  for (std::int64_t begin = 0; begin < plan_->rows; begin += kHeadRows) {
    const std::int64_t count = std::min(kHeadRows, plan_->rows - begin);
    const TensorView block = rows_of(plan_->head, 0, count);
    const auto at = static_cast<std::size_t>(begin);
    const auto size = static_cast<std::size_t>(count);
    linear_forward(device_, {rows_of(plan_->normed, begin, count), head, block, false});
    cross_entropy(device_, {block, targets.subspan(at, size), out.subspan(at, size),
                            best.empty() ? best : best.subspan(at, size), false, 1.0F});
  }
}

double ModelRunner::loss_and_gradients(const ModelInput& input, std::span<const std::int32_t> targets,
                                       std::span<float> gradients, std::int64_t count) {
  const ParameterLayout& layout = model_.layout();
  require(targets.size() == input.ids.size(), "{} targets for {} tokens", targets.size(), input.ids.size());
  require(static_cast<std::int64_t>(gradients.size()) == layout.size, "the gradients have another size than the model");
  run_blocks(input, true, {});
  const std::span<const float> parameters = model_.parameters();
  const std::int64_t counted =
      count > 0 ? count : std::count_if(targets.begin(), targets.end(), [](auto t) { return t >= 0; });
  const float scale = counted > 0 ? 1.0F / static_cast<float>(counted) : 0.0F;

  // The head, a block of rows at a time, so that the logits of all tokens never exist at once. The gradient of `normed`
  // takes its place.
  double loss = 0;
  std::vector<float> losses(static_cast<std::size_t>(std::min(plan_->rows, kHeadRows)));
  const ConstTensorView head = layout.head.in(parameters);
  const TensorView d_head = layout.head.in(gradients);
  for (std::int64_t begin = 0; begin < plan_->rows; begin += kHeadRows) {
    const std::int64_t size = std::min(kHeadRows, plan_->rows - begin);
    const TensorView block = rows_of(plan_->head, 0, size);
    const TensorView normed = rows_of(plan_->normed, begin, size);
    const std::span<float> block_losses(losses.data(), static_cast<std::size_t>(size));
    linear_forward(device_, {normed, head, block, false});
    cross_entropy(device_, {block,
                            targets.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)),
                            block_losses,
                            {},
                            true,
                            scale});
    for (const float value : block_losses) loss += value;
    linear_backward(device_, {normed, head, block, {}, d_head, false});
    linear_backward(device_, {normed, head, block, normed, {}, false});
  }

  // Back through the final norm and the blocks.
  const auto layers = model_.blocks().size();
  const TensorView& dx = plan_->d_stream;
  std::fill_n(reinterpret_cast<float*>(dx.data), dx.shape.elements(), 0.0F);
  rms_norm_backward(device_, {plan_->stream_at(layers), layout.final_norm.in(parameters), plan_->inverse_rms,
                              plan_->normed, dx, layout.final_norm.in(gradients)});
  const Batch batch{input.offsets};
  for (std::size_t i = layers; i-- > 0;) {
    BlockActivations& a = plan_->block_at(i);
    if (recompute_) {
      // The forward again; its output goes where the later blocks' input was.
      a.x = plan_->stream_at(i);
      model_.blocks()[i].forward(device_, parameters, batch, a, plan_->scratch, plan_->stream_at(i + 1), {});
    }
    model_.blocks()[i].backward(device_, parameters, gradients, batch, a, plan_->scratch, dx);
  }
  embedding_backward(device_, {input.ids, dx, layout.embeddings.in(gradients)});
  return loss * scale;
}

}  // namespace qdelta
