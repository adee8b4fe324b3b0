#include "capi/options.h"

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/caller_stream.h"

using namespace qdelta;

static_assert(static_cast<int>(Rule::q_delta) == QDELTA_Q_DELTA && static_cast<int>(Rule::linear) == QDELTA_LINEAR);
static_assert(static_cast<int>(Form::oracle) == QDELTA_ORACLE && static_cast<int>(Form::automatic) == QDELTA_AUTO);
static_assert(kRuleCount == QDELTA_Q_DELTA + 1);

namespace {

constexpr std::size_t kSizeIn01 = offsetof(qdelta_options, device);  // of qdelta_options
static_assert(kSizeIn01 == 32);

qdelta_options default_options() {
  qdelta_options options{};
  options.struct_size = sizeof(qdelta_options);
  options.rule = QDELTA_Q_DELTA;
  options.form = QDELTA_AUTO;
  options.device = {kDLCPU, 0};
  return options;
}

// A GPU on a stream is opened once and kept for as long as the program runs: to open one asks the driver for its
// properties, and there are few streams.
const cuda::Context* gpu_on_stream(int ordinal, void* stream) {
  using Opened = std::map<std::pair<int, void*>, std::shared_ptr<const cuda::Context>>;
  static auto* opened = new Opened;  // never destroyed: CUDA may be gone when the program ends
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  std::shared_ptr<const cuda::Context>& gpu = (*opened)[{ordinal, stream}];
  if (gpu == nullptr) gpu = open_gpu_on_stream(ordinal, stream);
  return gpu.get();
}

}  // namespace

int qdelta::check_device_type(const DLDevice& device, const char* name) {
  const int type = number_of(device.device_type);
  if (type == 0) return kDLCPU;  // not set
  if (type == kDLCPU || type == kDLCUDA) return type;
  fail(Status::unsupported, "{} has DLPack device type {}; there are {} (the CPU) and {} (CUDA)", name, type,
       static_cast<int>(kDLCPU), static_cast<int>(kDLCUDA));
}

CallOptions::CallOptions(const qdelta_options* options)
    : options_(known_fields(options, default_options(), kSizeIn01, "options", "qdelta_options_init")) {
  const int rule = number_of(options_.rule);
  const int form = number_of(options_.form);
  require(rule >= 0 && static_cast<std::size_t>(rule) < kRuleCount, "options.rule is {}, which is no rule", rule);
  require(form >= QDELTA_CHUNK && form <= QDELTA_AUTO, "options.form is {}, which is no form", form);
  device_.threads = options_.threads;
  if (check_device_type(options_.device, "options.device") == kDLCUDA) {
    device_.gpu = gpu_on_stream(options_.device.device_id, options_.stream);
  } else {
    options_.device = {kDLCPU, 0};
  }
}

Execution CallOptions::execution() const {
  return {
      .form = static_cast<Form>(options_.form), .chunk = options_.chunk, .bf16_products = options_.f32_products == 0};
}

std::span<std::byte> CallOptions::saved() const {
  if (options_.saved == nullptr) return {};
  return {static_cast<std::byte*>(options_.saved), static_cast<std::size_t>(options_.saved_size)};
}

float CallOptions::scale(const ConstTensorView& q, int key_axis) const {
  if (options_.scale != 0.0F || !q || q.shape.rank <= key_axis) return options_.scale;
  return 1.0F / std::sqrt(static_cast<float>(q.extent(key_axis)));
}

Workspace& CallOptions::thread_workspace() {
  thread_local Workspace workspace{Device{}};
  return workspace;
}

void qdelta_options_init_sized(qdelta_options* options, uint32_t struct_size) {
  if (options == nullptr || struct_size < kSizeIn01) return;
  qdelta_options defaults = default_options();
  defaults.struct_size = struct_size;
  auto* bytes = reinterpret_cast<unsigned char*>(options);
  const std::size_t known = std::min<std::size_t>(struct_size, sizeof defaults);
  std::memset(bytes, 0, struct_size);
  std::memcpy(bytes, &defaults, known);
}

void(qdelta_options_init)(qdelta_options* options) { qdelta_options_init_sized(options, kSizeIn01); }
