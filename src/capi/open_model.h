// What a qdelta_model handle stands for.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "qdelta/model.h"

namespace qdelta {

// A model, what runs it, and memory for a batch of states. The states of callers share it, so that it lives as long as
// they do.
class OpenModel {
 public:
  OpenModel(const std::string& folder, const qdelta_model_options& options);

  [[nodiscard]] const LanguageModel& model() const { return *model_; }
  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] const std::string& config() const { return config_; }  // config.json
  [[nodiscard]] const Tokenizer& tokenizer();                          // loaded when it is first asked for

  // Held during every use of the device, the runner or the pool.
  [[nodiscard]] std::mutex& mutex() { return mutex_; }
  [[nodiscard]] ModelRunner& runner() { return *runner_; }
  // At least so many states, side by side.
  [[nodiscard]] ModelStates& pool(std::int64_t count);

 private:
  std::string folder_;
  std::shared_ptr<const cuda::Context> gpu_;
  Device device_;
  std::unique_ptr<LanguageModel> model_;
  std::string config_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<ModelStates> pool_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::mutex mutex_, tokenizer_mutex_;
};

}  // namespace qdelta
