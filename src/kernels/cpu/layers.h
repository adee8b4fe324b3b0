// The ops of kernels/layers.h on the CPU, in float32. Those that need scratch memory take at least the bytes that their
// ..._workspace function says, from a multiple of kAlignment on.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/layers.h"

namespace qdelta::cpu {

void linear_forward(const Device& device, const LinearForward& args);
void linear_backward(const Device& device, const LinearBackward& args);
void embedding_forward(const Device& device, const EmbeddingForward& args);
void embedding_backward(const Device& device, const EmbeddingBackward& args);
void rms_norm_forward(const Device& device, const RmsNormForward& args);
void rms_norm_backward(const Device& device, const RmsNormBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t rms_norm_backward_workspace(const RmsNormBackward& args);
void gated_norm_forward(const Device& device, const GatedNormForward& args);
void gated_norm_backward(const Device& device, const GatedNormBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t gated_norm_backward_workspace(const GatedNormBackward& args);
void short_conv_forward(const Device& device, const ShortConvForward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t short_conv_forward_workspace(const ShortConvForward& args);
void short_conv_backward(const Device& device, const ShortConvBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t short_conv_backward_workspace(const Device& device, const ShortConvBackward& args);
void gates_forward(const Device& device, const GatesForward& args);
void gates_backward(const Device& device, const GatesBackward& args, std::span<std::byte> workspace);
[[nodiscard]] std::size_t gates_backward_workspace(const GatesBackward& args);
void swiglu_forward(const Device& device, const SwigluForward& args);
void swiglu_backward(const Device& device, const SwigluBackward& args);
void cross_entropy(const Device& device, const CrossEntropy& args);
void top_logits(const Device& device, const TopLogits& args);
void adamw(const Device& device, const AdamW& args);
void copy_rows(const Device& device, const CopyRows& args);
void add_product(const Device& device, const AddProduct& args);
void gather_slots(const Device& device, const CopySlots& args);
void scatter_slots(const Device& device, const CopySlots& args);
[[nodiscard]] double sum_of_squares(const Device& device, std::span<const float> values,
                                    std::span<std::byte> workspace);
[[nodiscard]] std::size_t sum_of_squares_workspace(std::span<const float> values);
[[nodiscard]] double sum_of_values(const Device& device, std::span<const float> values);

}  // namespace qdelta::cpu
