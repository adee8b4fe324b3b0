#include "model/parameters.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/fnv1a.h"
#include "core/threads.h"
#include "model/mixer_types.h"

namespace qdelta {
namespace {

std::int64_t parameters_of(std::span<const NamedSlot> tensors) {
  std::int64_t sum = 0;
  for (const NamedSlot& tensor : tensors) sum += tensor.slot.shape.elements();
  return sum;
}

}  // namespace

ParameterLayout::ParameterLayout(const ModelConfig& model) : config(model) {
  ParameterPlacer placer(tensors, constants);
  const Initializer normal = initial::normal(config.initializer_range);
  const Shape table{config.vocab_size, config.hidden_size};
  const std::string root = config.published_mamba() ? "backbone." : "model.";
  embeddings = placer.tensor(root + "embeddings.weight", table, normal);
  std::vector<std::unique_ptr<Mixer>> mixers = make_mixers(config);
  for (std::size_t i = 0; i < mixers.size(); ++i) {
    const std::size_t first = tensors.size();
    placer.align();
    block_begins.push_back(placer.end());
    blocks.emplace_back(config, std::move(mixers[i]), fmt::format("{}layers.{}.", root, i), placer);
    block_parameters.push_back(parameters_of(std::span(tensors).subspan(first)));
  }
  final_norm = placer.tensor(root + (config.published_mamba() ? "norm_f.weight" : "norm.weight"), {config.hidden_size},
                             initial::constant(1));
  head = config.tie_word_embeddings ? embeddings : placer.tensor("lm_head.weight", table, normal);
  placer.align();
  size = placer.end();
}

std::int64_t ParameterLayout::parameters() const { return parameters_of(tensors); }

void initialise(const ParameterLayout& layout, std::uint64_t seed, std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0F);
  parallel_for(static_cast<std::int64_t>(layout.tensors.size()), thread_count(0), [&](std::int64_t i, int /*worker*/) {
    const NamedSlot& tensor = layout.tensors[static_cast<std::size_t>(i)];
    const auto begin = static_cast<std::size_t>(tensor.slot.offset);
    const auto count = static_cast<std::size_t>(tensor.slot.shape.elements());
    Random random(mixed_seed(seed, fnv1a::of_texts({tensor.name})));
    tensor.initializer(random, values.subspan(begin, count));
  });
}

}  // namespace qdelta
