#include "cli/initial_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "data/tokenizer.h"
#include "model/checkpoint.h"

namespace qdelta {
namespace {

// Whether only the number of tokens differs.
bool differs_in_tokens(const ParameterLayout& layout, const NamedSlot& tensor, const Shape& other) {
  const bool per_token = tensor.slot.offset == layout.embeddings.offset || tensor.slot.offset == layout.head.offset;
  return per_token && other.rank == 2 && tensor.slot.shape.extent[1] == other.extent[1];
}

// What of the tokenizer is worth knowing: rows of the embeddings mean what its ids mean.
std::string about_tokenizer(const std::string& folder, const std::string& tokenizer) {
  if (tokenizer.empty()) return "";
  try {
    const auto before = load_tokenizer(folder);
    if (before->fingerprint() == load_tokenizer(tokenizer)->fingerprint()) return "";
    return fmt::format("The tokenizer is another than that of {}: ids mean other texts than its weights have learned.",
                       folder);
  } catch (const Error&) {
    return fmt::format("{} has no tokenizer to compare with that of the data.", folder);
  }
}

}  // namespace

std::vector<std::string> start_from(const std::string& folder, const std::string& tokenizer, LanguageModel& model) {
  const auto loaded = load_model(folder);
  const ParameterLayout& layout = model.layout();
  std::map<std::string, const Slot*> there;
  for (const NamedSlot& tensor : loaded->layout().tensors) there[tensor.name] = &tensor.slot;
  std::vector<std::string> notes;
  for (const NamedSlot& tensor : layout.tensors) {
    const auto found = there.find(tensor.name);
    require(found != there.end(), "{} has no tensor {}: its weights do not fit the model to train", folder,
            tensor.name);
    const Slot& from = *found->second;
    const Shape& shape = tensor.slot.shape;
    const bool same = from.shape == shape;
    require(same || differs_in_tokens(layout, tensor, from.shape), "{}: {} has shape {}, but the model to train has {}",
            folder, tensor.name, from.shape.text(), shape.text());
    const std::int64_t count = std::min(from.shape.elements(), shape.elements());
    std::copy_n(loaded->parameters().begin() + from.offset, count, model.parameters().begin() + tensor.slot.offset);
    if (!same) {
      notes.push_back(fmt::format("{} has {} tokens there and {} here: {} rows are taken, {} start anew.", tensor.name,
                                  from.shape.extent[0], shape.extent[0], count / shape.extent[1],
                                  shape.extent[0] - count / shape.extent[1]));
    }
    there.erase(found);
  }
  require(there.empty(), "{} has a tensor {} that the model to train does not have", folder,
          there.empty() ? "" : there.begin()->first);
  if (const std::string note = about_tokenizer(folder, tokenizer); !note.empty()) notes.push_back(note);
  return notes;
}

}  // namespace qdelta
