// What mixes the tokens of a layer: the interface of the recurrence (recurrence_mixer.h), of Mamba's scan
// (mamba_mixer.h) and of any other. A mixer owns its parameters, its activations, its scratch memory and its part of
// the recurrent state; the block around it, the model, state pools and files know only what is declared here.
//
// To add one: write its class in two files of its own, and enter its name in the table of mixer_types.cpp.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "kernels/device.h"
#include "kernels/layers.h"
#include "kernels/workspace.h"
#include "model/batch.h"
#include "model/parameter_placer.h"

namespace qdelta {

struct ModelConfig;

// What a mixer's forward saves for its backward, and memory that it shares with the mixers of other layers. Each mixer
// derives its own from them.
struct MixerActivations {
  virtual ~MixerActivations() = default;
};
struct MixerScratch {
  virtual ~MixerScratch() = default;
};

// One tensor of a mixer's part of the recurrent state; float32.
struct StateTensor {
  std::string_view name;  // unique within the mixer
  Shape shape;            // of one sequence
};

// Where a mixer finds and leaves its part of the state, for inference.
struct MixerState {
  // Pools [P, ...] in the order of Mixer::state_tensors(). Empty: start from zeros, keep nothing.
  std::span<const TensorView> pools;
  std::span<const std::int64_t> slots;         // the state of each sequence
  std::span<const std::int64_t> device_slots;  // the same, where kernels can read them
  TensorView recent;                           // what steps keep beside the pools (recent_tokens.h), [P, ...]; optional
  DeviceBuffer* copies = nullptr;              // for states that must lie side by side and do not (adjacent_states.h)

  [[nodiscard]] explicit operator bool() const { return !pools.empty(); }
};

// What the layers of a call have in common.
struct LayerContext {
  const Device& device;
  const Weights& weights;
  const Batch& batch;
  Workspace& workspace;  // of the ops
};

// For people and for reports.
struct MixerDescription {
  std::string label, text;                                       // "Heads", "6, keys of 128, values of 256"
  std::vector<std::pair<std::string_view, std::int64_t>> sizes;  // the same for machines
  std::string summary;                                           // "6 heads of 128 x 256"
  std::vector<std::pair<std::string_view, std::int64_t>> summary_sizes;
};

class Mixer {
 public:
  virtual ~Mixer() = default;

  // Throws where the config asks for what this mixer cannot do.
  virtual void check() const = 0;
  // About how many parameters it has. In floating point: a config may ask for any amount.
  [[nodiscard]] virtual double approximate_parameters() const = 0;
  // Keys of config.json that only models with this mixer have.
  virtual void write_config(nlohmann::ordered_json& /*json*/) const {}
  [[nodiscard]] virtual MixerDescription description() const = 0;
  // Floating-point operations per token beside the products with parameters.
  [[nodiscard]] virtual double forward_flop() const = 0;
  [[nodiscard]] virtual double backward_flop() const = 0;

  // The tensors of a sequence's state.
  [[nodiscard]] virtual std::vector<StateTensor> state_tensors() const = 0;
  // How many float32 its steps keep beside a state (recent_tokens.h). Zeros are nothing kept. Of one slot: `settle`
  // brings what is kept into the state, `undo` takes the last tokens of it back.
  [[nodiscard]] virtual std::int64_t recent_elements(const Device& /*device*/) const { return 0; }
  virtual void settle(const Device& /*device*/, std::span<const TensorView> /*pools*/,
                      const TensorView& /*recent*/) const {}
  virtual void undo(const Device& /*device*/, std::span<const TensorView> /*pools*/, const TensorView& /*recent*/,
                    std::int64_t /*tokens*/) const {}
  // Whether a text may be cut into calls at multiples of kRowBlock tokens, as kernels/row_blocks.h says, and its state
  // keep the same bits.
  [[nodiscard]] virtual bool cuts_keep_bits(const Device& /*device*/) const { return true; }

  // Takes places for its parameters, whose names start with `prefix`. Once, before anything below.
  virtual void place(const std::string& prefix, ParameterPlacer& placer) = 0;

  // Memory for a batch. What is written at every call may lie in scratch memory; nothing lasts there beyond a call.
  [[nodiscard]] virtual std::unique_ptr<MixerActivations> plan_activations(const Device& device,
                                                                           const BatchShape& shape,
                                                                           BumpAllocator& memory) const = 0;
  [[nodiscard]] virtual std::unique_ptr<MixerScratch> plan_scratch(const Device& device, const BatchShape& shape,
                                                                   BumpAllocator& memory) const = 0;

  // out = x + mixer(norm(x))
  struct Forward {
    RmsNormForward norm;  // of x [N, hidden] f32, to what the mixer reads, of the type of activations
    TensorView out;       // [N, hidden] f32; may be x
  };
  virtual void forward(const LayerContext& context, const Forward& args, MixerActivations& activations,
                       MixerScratch& scratch, const MixerState& state) const = 0;

  // Adds to the gradients of its parameters.
  struct Backward {
    ConstTensorView in;          // the normalised x, as the forward left it
    ConstTensorView d_out;       // [N, hidden], of the type of activations
    TensorView d_in;             // likewise; written
    std::span<float> gradients;  // the flat array
  };
  virtual void backward(const LayerContext& context, const Backward& args, const MixerActivations& activations,
                        MixerScratch& scratch) const = 0;
};

}  // namespace qdelta
