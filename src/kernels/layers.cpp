// The ops' entry points: each goes to the CPU or to the GPU.
#include "kernels/layers.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/layers.h"
#include "kernels/work_times.h"
#ifdef QDELTA_WITH_CUDA
#include "kernels/cuda/context.h"
#include "kernels/cuda/layers.h"
#endif

namespace qdelta {

void linear_forward(const Device& device, const LinearForward& args) {
  const TimedWork timed(Work::products);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::linear_forward(*device.gpu, args);
#endif
  cpu::linear_forward(device, args);
}

void linear_backward(const Device& device, const LinearBackward& args) {
  const TimedWork timed(Work::products);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::linear_backward(*device.gpu, args);
#endif
  cpu::linear_backward(device, args);
}

void embedding_forward(const Device& device, const EmbeddingForward& args) {
  const TimedWork timed(Work::other);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::embedding_forward(*device.gpu, args);
#endif
  cpu::embedding_forward(device, args);
}

void embedding_backward(const Device& device, const EmbeddingBackward& args, Workspace& workspace) {
  const TimedWork timed(Work::other);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr)
    return cuda::embedding_backward(*device.gpu, args, workspace.get(cuda::embedding_backward_workspace(args)));
#endif
  (void)workspace;
  cpu::embedding_backward(device, args);
}

void rms_norm_forward(const Device& device, const RmsNormForward& args) {
  const TimedWork timed(Work::norms);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::rms_norm_forward(*device.gpu, args);
#endif
  cpu::rms_norm_forward(device, args);
}

void rms_norm_backward(const Device& device, const RmsNormBackward& args, Workspace& workspace) {
  const TimedWork timed(Work::norms);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr)
    return cuda::rms_norm_backward(*device.gpu, args, workspace.get(cuda::rms_norm_backward_workspace(args)));
#endif
  cpu::rms_norm_backward(device, args, workspace.get(cpu::rms_norm_backward_workspace(args)));
}

void gated_norm_forward(const Device& device, const GatedNormForward& args) {
  const TimedWork timed(Work::norms);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::gated_norm_forward(*device.gpu, args);
#endif
  cpu::gated_norm_forward(device, args);
}

void gated_norm_backward(const Device& device, const GatedNormBackward& args, Workspace& workspace) {
  const TimedWork timed(Work::norms);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr)
    return cuda::gated_norm_backward(*device.gpu, args, workspace.get(cuda::gated_norm_backward_workspace(args)));
#endif
  cpu::gated_norm_backward(device, args, workspace.get(cpu::gated_norm_backward_workspace(args)));
}

void short_conv_forward(const Device& device, const ShortConvForward& args, Workspace& workspace) {
  const TimedWork timed(Work::convolution);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::short_conv_forward(*device.gpu, args);
#endif
  cpu::short_conv_forward(device, args, workspace.get(cpu::short_conv_forward_workspace(args)));
}

void short_conv_undo(const Device& device, const ShortConvUndo& args) {
  const TimedWork timed(Work::convolution);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::short_conv_undo(*device.gpu, args);
#else
  (void)device;
  (void)args;
#endif
  fail(Status::invalid_argument, "the inputs that left a convolution's state are kept on a GPU only");
}

void short_conv_backward(const Device& device, const ShortConvBackward& args, Workspace& workspace) {
  const TimedWork timed(Work::convolution);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr)
    return cuda::short_conv_backward(*device.gpu, args, workspace.get(cuda::short_conv_backward_workspace(args)));
#endif
  cpu::short_conv_backward(device, args, workspace.get(cpu::short_conv_backward_workspace(device, args)));
}

void gates_forward(const Device& device, const GatesForward& args) {
  const TimedWork timed(Work::other);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::gates_forward(*device.gpu, args);
#endif
  cpu::gates_forward(device, args);
}

void gates_backward(const Device& device, const GatesBackward& args, Workspace& workspace) {
  const TimedWork timed(Work::other);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr)
    return cuda::gates_backward(*device.gpu, args, workspace.get(cuda::gates_backward_workspace(args)));
#endif
  cpu::gates_backward(device, args, workspace.get(cpu::gates_backward_workspace(args)));
}

void swiglu_forward(const Device& device, const SwigluForward& args) {
  const TimedWork timed(Work::mlp);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::swiglu_forward(*device.gpu, args);
#endif
  cpu::swiglu_forward(device, args);
}

void swiglu_backward(const Device& device, const SwigluBackward& args) {
  const TimedWork timed(Work::mlp);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::swiglu_backward(*device.gpu, args);
#endif
  cpu::swiglu_backward(device, args);
}

void top_logits(const Device& device, const TopLogits& args) {
  const TimedWork timed(Work::other);
  require(static_cast<bool>(args.logits) && args.logits.dtype == DType::f32 && args.logits.shape.rank == 2 &&
              (args.logits.step(1) == 1 || args.logits.extent(1) <= 1),
          "top_logits: logits must be a float32 matrix with contiguous columns");
  const std::int64_t rows = args.logits.extent(0);
  require(args.top >= 1 && args.top <= args.logits.extent(1), "top_logits: the {} largest of {} logits", args.top,
          args.logits.extent(1));
  require(static_cast<std::int64_t>(args.tokens.size()) == rows * args.top && args.values.size() == args.tokens.size(),
          "top_logits: {} tokens and {} values for {} of {} rows", args.tokens.size(), args.values.size(), args.top,
          rows);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::top_logits(*device.gpu, args);
#endif
  cpu::top_logits(device, args);
}

void cross_entropy(const Device& device, const CrossEntropy& args) {
  const TimedWork timed(Work::loss);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::cross_entropy(*device.gpu, args);
#endif
  cpu::cross_entropy(device, args);
}

void adamw(const Device& device, const AdamW& args) {
  const TimedWork timed(Work::optimizer);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::adamw(*device.gpu, {.args = args, .rounded = args.rounded});
#endif
  cpu::adamw(device, args);
}

double clipped_adamw(const Device& device, const AdamW& args, float max_norm, Workspace& workspace) {
  const TimedWork timed(Work::optimizer);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) {
    // What clipping found comes first in the scratch space, behind it the sums of pieces.
    static_assert(sizeof(cuda::Clipping) <= kAlignment);
    const std::span<std::byte> scratch = workspace.get(kAlignment + cuda::sum_workspace());
    auto* clipping = reinterpret_cast<cuda::Clipping*>(scratch.data());
    cuda::clip_gradients(*device.gpu, args.gradients, max_norm, clipping, scratch.subspan(kAlignment));
    cuda::adamw(*device.gpu, {.args = args, .clipping = clipping, .rounded = args.rounded});
    cuda::Clipping found{};
    download(device, &found, clipping, sizeof(found));
    return std::sqrt(found.sum_of_squares);
  }
#endif
  const double norm = std::sqrt(
      cpu::sum_of_squares(device, args.gradients, workspace.get(cpu::sum_of_squares_workspace(args.gradients))));
  if (!std::isfinite(norm)) return norm;
  AdamW clipped = args;
  // As torch's clip_grad_norm_: the small constant keeps the quotient finite.
  if (max_norm > 0) clipped.gradient_scale *= static_cast<float>(std::min(1.0, double{max_norm} / (norm + 1e-6)));
  cpu::adamw(device, clipped);
  return norm;
}

void copy_rows(const Device& device, const CopyRows& args) {
  const TimedWork timed(Work::other);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::copy_rows(*device.gpu, args);
#endif
  cpu::copy_rows(device, args);
}

void add_product(const Device& device, const AddProduct& args) {
  const TimedWork timed(Work::other);
  require(args.a.size() == args.out.size() && args.b.size() == args.out.size(), "add_product: {} and {} numbers for {}",
          args.a.size(), args.b.size(), args.out.size());
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::add_product(*device.gpu, args);
#endif
  cpu::add_product(device, args);
}

namespace {

void check_slots(const CopySlots& args) {
  for (const TensorView* view : {&args.pool, &args.rows}) {
    require(static_cast<bool>(*view) && view->dtype == DType::f32 && view->shape.rank == 2 && view->contiguous(),
            "copying states: the pool and the rows must be contiguous float32 matrices");
  }
  require(
      args.pool.extent(1) == args.rows.extent(1) && args.rows.extent(0) == static_cast<std::int64_t>(args.slots.size()),
      "copying states: {} slots of a pool {} and rows {}", args.slots.size(), args.pool.shape.text(),
      args.rows.shape.text());
}

}  // namespace

void gather_slots(const Device& device, const CopySlots& args) {
  const TimedWork timed(Work::other);
  check_slots(args);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::gather_slots(*device.gpu, args);
#endif
  cpu::gather_slots(device, args);
}

void scatter_slots(const Device& device, const CopySlots& args) {
  const TimedWork timed(Work::other);
  check_slots(args);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) return cuda::scatter_slots(*device.gpu, args);
#endif
  cpu::scatter_slots(device, args);
}

double sum_of_squares(const Device& device, std::span<const float> values, Workspace& workspace) {
  if (values.empty()) return 0;
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) {
    const std::span<std::byte> scratch = workspace.get(kAlignment + cuda::sum_workspace());
    auto* clipping = reinterpret_cast<cuda::Clipping*>(scratch.data());
    cuda::clip_gradients(*device.gpu, values, 0, clipping, scratch.subspan(kAlignment));
    cuda::Clipping found{};
    download(device, &found, clipping, sizeof(found));
    return found.sum_of_squares;
  }
#endif
  return cpu::sum_of_squares(device, values, workspace.get(cpu::sum_of_squares_workspace(values)));
}

double sum_of_values(const Device& device, std::span<const float> values, Workspace& workspace) {
  const TimedWork timed(Work::loss);
#ifdef QDELTA_WITH_CUDA
  if (device.gpu != nullptr) {
    // The sum comes first in the scratch space, behind it the sums of pieces.
    const std::span<std::byte> scratch = workspace.get(kAlignment + cuda::sum_workspace());
    auto* sum = reinterpret_cast<double*>(scratch.data());
    cuda::sum_of_values(*device.gpu, values, sum, scratch.subspan(kAlignment));
    double result = 0;
    download(device, &result, sum, sizeof(result));
    return result;
  }
#endif
  (void)workspace;
  return cpu::sum_of_values(device, values);
}

}  // namespace qdelta
