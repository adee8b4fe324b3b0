// qdelta logits: a model on token ids from a file, with the loss and, if wanted, every gradient. For checking against
// other implementations.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <memory>

#include "cli/cli.h"
#include "cli/device_flags.h"
#include "cli/model_folder.h"
#include "io/safetensors.h"
#include "model/checkpoint.h"

namespace qdelta {
namespace {

struct LogitsFlags {
  std::string model, in, out;
  bool gradients = false;
  DeviceFlags device;
};

void run_logits(LogitsFlags& flags) {
  flags.model = model_folder(flags.model);
  const auto model = load_model(flags.model);
  const SafetensorsFile file = SafetensorsFile::open(flags.in);
  const ConstTensorView input = file.view("input_ids");
  require(input.shape.rank == 2, "{}: input_ids has shape {}, expected [batch, tokens]", flags.in, input.shape.text());
  const std::int64_t B = input.extent(0);
  const std::int64_t T = input.extent(1);
  require(B > 0 && T > 0, "{}: input_ids is empty", flags.in);
  const std::vector<std::int64_t> flat = integers_of(ConstTensorView(input.data, input.dtype, {B * T}), "input_ids");
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;
  for (std::size_t i = 0; i < flat.size(); ++i) {
    require(flat[i] >= 0 && flat[i] < model->config().vocab_size,
            "input_ids[{}] is {}, but the vocabulary has {} entries", i, flat[i], model->config().vocab_size);
    ids.push_back(static_cast<std::int32_t>(flat[i]));
    const bool last = (static_cast<std::int64_t>(i) + 1) % T == 0;
    targets.push_back(last ? -1 : static_cast<std::int32_t>(flat[i + 1]));
  }
  std::vector<std::int64_t> offsets;
  for (std::int64_t b = 0; b <= B; ++b) offsets.push_back(b * T);

  const Device device = flags.device.open();
  ModelRunner runner(*model, device);
  Tensor logits(DType::f32, {B * T, model->config().vocab_size});
  runner.logits({ids, offsets}, logits.view());
  Tensor gradients(DType::f32, {model->layout().size});
  Tensor loss(DType::f32, {1});
  DeviceTensor device_gradients(device, DType::f32, gradients.shape());
  loss.as<float>()[0] = static_cast<float>(runner.loss_and_gradients(
      {ids, offsets}, targets, {reinterpret_cast<float*>(device_gradients.view().data), gradients.as<float>().size()}));
  download(device, gradients.data(), device_gradients.view().data, gradients.bytes());

  std::vector<NamedTensor> tensors{
      {"logits", ConstTensorView(logits.data(), DType::f32, {B, T, model->config().vocab_size})},
      {"loss", loss.view()}};
  if (flags.gradients) {
    const std::span<const float> values = gradients.as<float>();
    for (const NamedSlot& tensor : model->layout().tensors)
      tensors.push_back({"grad." + tensor.name, tensor.slot.in(values)});
  }
  write_safetensors(flags.out, tensors, {{"qdelta", QDELTA_VERSION}});
  fmt::print("{} sequences of {} tokens, loss {:.6f}; wrote {}\n", B, T, loss.as<float>()[0], flags.out);
}

}  // namespace

void add_logits(CLI::App& app) {
  CLI::App* command = app.add_subcommand("logits", "Logits, loss and gradients of a model on given token ids");
  auto flags = std::make_shared<LogitsFlags>();
  command->add_option("--model", flags->model, kModelHelp)->required();
  command->add_option("--in", flags->in, "Safetensors file with input_ids [batch, tokens], I32 or I64")->required();
  command->add_option("--out", flags->out, "Safetensors file to write: logits, loss, and grad.NAME of every parameter")
      ->required();
  command->add_flag("--grads", flags->gradients, "Also write the gradients of the mean next-token loss");
  flags->device.add_to(*command);
  command->footer(
      "Example:  qdelta logits --model run --in ids.safetensors --out out.safetensors "
      "--grads");
  command->callback([flags] { run_logits(*flags); });
}

}  // namespace qdelta
