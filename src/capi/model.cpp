// The C interface of models: handles around a LanguageModel, its runner and pools of states.
#include "qdelta/model.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "capi/open_model.h"
#include "capi/options.h"
#include "capi/status.h"
#include "infer/state_file.h"
#include "kernels/caller_stream.h"

using namespace qdelta;

namespace {

constexpr std::size_t kFirstSize = 4 + 4 + 8 + 4;  // of qdelta_model_options in its first version
static_assert(sizeof(qdelta_model_options) == kFirstSize);

qdelta_model_options default_model_options() {
  qdelta_model_options options{};
  options.struct_size = sizeof options;
  options.device = {kDLCPU, 0};
  return options;
}

}  // namespace

struct qdelta_model {
  std::shared_ptr<OpenModel> open;
};

struct qdelta_state {
  std::shared_ptr<OpenModel> open;
  ModelStates states;  // one slot
  SavedState info;

  explicit qdelta_state(std::shared_ptr<OpenModel> model)
      : open(std::move(model)), states(open->model().config(), 1, open->device()) {}
};

namespace {

using Lock = std::scoped_lock<std::mutex>;

// What a call of qdelta_model_read reads.
struct Reading {
  std::span<const std::int32_t> ids;
  std::span<const std::int64_t> offsets;  // one more than there are sequences
  qdelta_logits which;
  float* logits;

  [[nodiscard]] std::int64_t sequences() const { return std::ssize(offsets) - 1; }
};

void check_reading(const OpenModel& open, const Reading& what) {
  require(what.offsets[0] == 0, "offsets start with {}, expected 0", what.offsets[0]);
  for (std::size_t n = 1; n < what.offsets.size(); ++n) {
    require(what.offsets[n] > what.offsets[n - 1], "sequence {} has no tokens: its offsets are {} and {}", n - 1,
            what.offsets[n - 1], what.offsets[n]);
  }
  require(what.offsets.back() < (std::int64_t{1} << 31), "{} tokens are too many for one call", what.offsets.back());
  const std::int64_t vocabulary = open.model().config().vocab_size;
  for (std::size_t i = 0; i < what.ids.size(); ++i) {
    require(what.ids[i] >= 0 && what.ids[i] < vocabulary, "token {} is {}, but the vocabulary has {} entries", i,
            what.ids[i], vocabulary);
  }
  require(what.logits != nullptr || what.which == QDELTA_NO_LOGITS, "logits is NULL");
}

TensorView rows_of_logits(const OpenModel& open, const Reading& what, std::int64_t begin, std::int64_t count) {
  const std::int64_t vocabulary = open.model().config().vocab_size;
  return {reinterpret_cast<std::byte*>(what.logits + begin * vocabulary), DType::f32, {count, vocabulary}};
}

void run(OpenModel& open, const ModelInput& input, qdelta_logits which, const TensorView& out,
         const StateSlots& states) {
  switch (which) {
    case QDELTA_NO_LOGITS:
      return open.runner().observe(input, {}, states);
    case QDELTA_LAST_LOGITS:
      return open.runner().last_logits(input, out, states);
    case QDELTA_ALL_LOGITS:
      return open.runner().logits(input, out, states);
  }
}

// One sequence in pieces, so that memory for activations does not grow with its length.
void read_in_pieces(OpenModel& open, const Reading& what, std::int64_t n, std::int64_t piece, ModelStates& pool) {
  const std::int64_t slots[] = {n};
  const std::int64_t end = what.offsets[static_cast<std::size_t>(n) + 1];
  for (std::int64_t begin = what.offsets[static_cast<std::size_t>(n)]; begin < end; begin += piece) {
    const std::int64_t count = std::min(piece, end - begin);
    const std::int64_t offsets[] = {0, count};
    const ModelInput input{what.ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)), offsets};
    const bool last = begin + count == end;
    const qdelta_logits which = what.which == QDELTA_LAST_LOGITS && !last ? QDELTA_NO_LOGITS : what.which;
    TensorView out;
    if (which == QDELTA_LAST_LOGITS) out = rows_of_logits(open, what, n, 1);
    if (which == QDELTA_ALL_LOGITS) out = rows_of_logits(open, what, begin, count);
    run(open, input, which, out, {&pool, slots});
  }
}

// Reads into the first slots of the model's pool.
void read(OpenModel& open, const Reading& what) {
  const std::int64_t N = what.sequences();
  ModelStates& pool = open.pool(N);
  const std::int64_t piece = open.device().gpu != nullptr ? 8192 : 512;
  if (std::ssize(what.ids) > piece || N > piece) {
    for (std::int64_t n = 0; n < N; ++n) read_in_pieces(open, what, n, piece, pool);
    return;
  }
  std::vector<std::int64_t> slots;
  for (std::int64_t n = 0; n < N; ++n) slots.push_back(n);
  const std::int64_t rows = what.which == QDELTA_ALL_LOGITS ? std::ssize(what.ids) : N;
  const TensorView out = what.which == QDELTA_NO_LOGITS ? TensorView() : rows_of_logits(open, what, 0, rows);
  run(open, {what.ids, what.offsets}, what.which, out, {&pool, slots});
}

void check_states(const OpenModel& open, std::span<qdelta_state* const> states) {
  std::set<const qdelta_state*> seen;
  for (std::size_t n = 0; n < states.size(); ++n) {
    require(states[n] != nullptr, "states[{}] is NULL", n);
    require(states[n]->open.get() == &open, "states[{}] is a state of another model", n);
    require(seen.insert(states[n]).second, "states[{}] appears twice", n);
  }
}

void read_with_states(OpenModel& open, const Reading& what, std::span<qdelta_state* const> states) {
  ModelStates& pool = open.pool(what.sequences());
  for (std::int64_t n = 0; n < what.sequences(); ++n) {
    if (states.empty()) {
      pool.clear(n);
    } else {
      pool.copy(states[static_cast<std::size_t>(n)]->states, 0, n);
    }
  }
  read(open, what);
  for (std::size_t n = 0; n < states.size(); ++n) {
    qdelta_state& state = *states[n];
    const auto begin = static_cast<std::size_t>(what.offsets[n]);
    const auto end = static_cast<std::size_t>(what.offsets[n + 1]);
    state.states.copy(pool, static_cast<std::int64_t>(n), 0);
    state.info.tokens += static_cast<std::int64_t>(end - begin);
    state.info.token_hash = hash_tokens(state.info.token_hash, what.ids.subspan(begin, end - begin));
  }
  synchronize(open.device());  // what was copied is the caller's from here on, whatever becomes of the pool
}

}  // namespace

void qdelta_model_options_init_sized(qdelta_model_options* options, uint32_t struct_size) {
  if (options == nullptr || struct_size < kFirstSize) return;
  qdelta_model_options defaults = default_model_options();
  defaults.struct_size = struct_size;
  std::memset(reinterpret_cast<unsigned char*>(options), 0, struct_size);
  std::memcpy(options, &defaults, std::min<std::size_t>(struct_size, sizeof defaults));
}

qdelta_status qdelta_model_open(const char* folder, const qdelta_model_options* options, qdelta_model** model) {
  return guarded([&] {
    require(folder != nullptr && model != nullptr, "folder and model must not be NULL");
    const qdelta_model_options known = options == nullptr ? default_model_options()
                                                          : known_fields(options, default_model_options(), kFirstSize,
                                                                         "options", "qdelta_model_options_init");
    *model = new qdelta_model{std::make_shared<OpenModel>(folder, known)};
  });
}

void qdelta_model_free(qdelta_model* model) { delete model; }

int64_t qdelta_model_vocab_size(const qdelta_model* model) {
  return model == nullptr ? -1 : model->open->model().config().vocab_size;
}

int64_t qdelta_model_parameter_count(const qdelta_model* model) {
  if (model == nullptr) return -1;
  std::int64_t count = 0;
  for (const NamedSlot& tensor : model->open->model().layout().tensors) count += tensor.slot.shape.elements();
  return count;
}

const char* qdelta_model_config(const qdelta_model* model) {
  return model == nullptr ? nullptr : model->open->config().c_str();
}

qdelta_status qdelta_state_new(qdelta_model* model, qdelta_state** state) {
  return guarded([&] {
    require(model != nullptr && state != nullptr, "model and state must not be NULL");
    const Lock lock(model->open->mutex());
    const CurrentGpu current(model->open->device());
    *state = new qdelta_state(model->open);
  });
}

qdelta_status qdelta_state_clone(const qdelta_state* state, qdelta_state** copy) {
  return guarded([&] {
    require(state != nullptr && copy != nullptr, "state and copy must not be NULL");
    const Lock lock(state->open->mutex());
    const CurrentGpu current(state->open->device());
    auto made = std::make_unique<qdelta_state>(state->open);
    made->states.copy(state->states, 0, 0);
    synchronize(state->open->device());
    made->info = state->info;
    *copy = made.release();
  });
}

qdelta_status qdelta_state_save(const qdelta_state* state, const char* path) {
  return guarded([&] {
    require(state != nullptr && path != nullptr, "state and path must not be NULL");
    const Lock lock(state->open->mutex());
    const CurrentGpu current(state->open->device());
    save_state(path, state->open->model(), state->states, 0, state->info);
  });
}

qdelta_status qdelta_state_load(qdelta_model* model, const char* path, qdelta_state** state) {
  return guarded([&] {
    require(model != nullptr && path != nullptr && state != nullptr, "model, path and state must not be NULL");
    OpenModel& open = *model->open;
    const Lock lock(open.mutex());
    const CurrentGpu current(open.device());
    auto made = std::make_unique<qdelta_state>(model->open);
    made->info = load_state(path, open.model(), made->states, 0);
    // What `qdelta generate` had chosen but not read yet.
    if (const std::int32_t pending = std::exchange(made->info.pending, -1); pending >= 0) {
      const std::int64_t offsets[] = {0, 1};
      qdelta_state* const states[] = {made.get()};
      read_with_states(open, {{&pending, 1}, offsets, QDELTA_NO_LOGITS, nullptr}, states);
    }
    *state = made.release();
  });
}

void qdelta_state_free(qdelta_state* state) {
  if (state == nullptr) return;
  guarded([&] {
    const std::shared_ptr<OpenModel> open = state->open;  // outlives the lock
    const Lock lock(open->mutex());
    const CurrentGpu current(open->device());
    delete state;
  });
}

int64_t qdelta_state_tokens(const qdelta_state* state) { return state == nullptr ? -1 : state->info.tokens; }

qdelta_status qdelta_model_read(qdelta_model* model, const int32_t* tokens, const int64_t* offsets, int64_t sequences,
                                qdelta_state* const* states, qdelta_logits which,
                                float* logits) {  // NOLINT(readability-non-const-parameter): written through a span
  return guarded([&] {
    require(model != nullptr && tokens != nullptr && offsets != nullptr, "model, tokens and offsets must not be NULL");
    require(sequences > 0 && sequences < (std::int64_t{1} << 31), "there are {} sequences", sequences);
    const int asked = number_of(which);
    require(asked >= QDELTA_NO_LOGITS && asked <= QDELTA_ALL_LOGITS, "which is {}, which is no kind of logits", asked);
    const auto count = static_cast<std::size_t>(sequences);
    const std::int64_t total = offsets[count];
    require(total > 0, "offsets end with {}, expected the number of tokens", total);
    const Reading what{{tokens, static_cast<std::size_t>(total)}, {offsets, count + 1}, which, logits};
    OpenModel& open = *model->open;
    check_reading(open, what);
    const std::span<qdelta_state* const> given(states, states == nullptr ? 0 : count);
    check_states(open, given);
    const Lock lock(open.mutex());
    const CurrentGpu current(open.device());
    read_with_states(open, what, given);
  });
}

qdelta_status qdelta_tokenize(qdelta_model* model, const char* text, int64_t bytes, int32_t add_special, int32_t* ids,
                              int64_t capacity, int64_t* count) {
  return guarded([&] {
    require(model != nullptr && (text != nullptr || bytes == 0) && count != nullptr,
            "model, text and count must not be NULL");
    require(bytes >= 0 && capacity >= 0, "bytes is {} and capacity {}", bytes, capacity);
    require(ids != nullptr || capacity == 0, "ids is NULL");
    const std::string_view given(text, static_cast<std::size_t>(bytes));
    const Tokenizer& tokenizer = model->open->tokenizer();
    const std::vector<std::int32_t> all =
        add_special != 0 ? tokenizer.encode_with_special(given) : tokenizer.encode(given);
    std::copy_n(all.begin(), std::min<std::int64_t>(capacity, std::ssize(all)), ids);
    *count = std::ssize(all);
  });
}

qdelta_status qdelta_detokenize(qdelta_model* model, const int32_t* ids, int64_t count, int32_t keep_special,
                                char* text, int64_t capacity, int64_t* bytes) {
  return guarded([&] {
    require(model != nullptr && (ids != nullptr || count == 0) && bytes != nullptr,
            "model, ids and bytes must not be NULL");
    require(count >= 0 && capacity >= 0, "count is {} and capacity {}", count, capacity);
    require(text != nullptr || capacity == 0, "text is NULL");
    const std::string all =
        model->open->tokenizer().decode({ids, static_cast<std::size_t>(count)},
                                        keep_special != 0 ? Tokenizer::Special::keep : Tokenizer::Special::skip);
    std::copy_n(all.begin(), std::min<std::int64_t>(capacity, std::ssize(all)), text);
    *bytes = std::ssize(all);
  });
}

qdelta_status qdelta_special_token(qdelta_model* model, qdelta_special which, int32_t* id) {
  return guarded([&] {
    require(model != nullptr && id != nullptr, "model and id must not be NULL");
    const Tokenizer& tokenizer = model->open->tokenizer();
    switch (number_of(which)) {
      case QDELTA_BOS:
        *id = tokenizer.bos().value_or(-1);
        return;
      case QDELTA_EOS:
        *id = tokenizer.eos().value_or(-1);
        return;
      case QDELTA_PAD:
        *id = tokenizer.pad().value_or(-1);
        return;
      default:
        fail(Status::invalid_argument, "which is {}, which is no special token", number_of(which));
    }
  });
}
