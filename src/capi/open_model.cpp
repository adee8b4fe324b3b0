#include "capi/open_model.h"

#include <nlohmann/json.hpp>

#include "capi/options.h"
#include "kernels/caller_stream.h"
#include "model/checkpoint.h"

namespace qdelta {

OpenModel::OpenModel(const std::string& folder, const qdelta_model_options& options)
    : folder_(folder), device_{.threads = options.threads} {
  const int kind = check_device_type(options.device, "options.device");
  require(options.threads >= 0 && options.threads <= 4096, "options.threads is {}, expected 1 to 4096 (0 for all)",
          options.threads);
  if (kind == kDLCUDA) {
    gpu_ = open_gpu(options.device.device_id);
    device_.gpu = gpu_.get();
    device_.activations = options.f32_activations != 0 ? DType::f32 : DType::bf16;
  }
  model_ = load_model(folder);
  config_ = config_to_json(model_->config()).dump(1);
  const CurrentGpu current(device_);
  runner_ = std::make_unique<ModelRunner>(*model_, device_);
}

ModelStates& OpenModel::pool(std::int64_t count) {
  if (pool_ == nullptr || pool_->count() < count) {
    pool_.reset();  // first, so that the two need not fit side by side
    pool_ = std::make_unique<ModelStates>(model_->config(), count, device_);
  }
  return *pool_;
}

const Tokenizer& OpenModel::tokenizer() {
  const std::scoped_lock lock(tokenizer_mutex_);
  if (tokenizer_ == nullptr) tokenizer_ = load_tokenizer(folder_);
  return *tokenizer_;
}

}  // namespace qdelta
