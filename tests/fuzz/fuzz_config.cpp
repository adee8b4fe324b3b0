// Feeds bytes to the reader of config.json. A config that is accepted must be the same again when it is written and
// read, and its parameters must have places.
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "expect.h"
#include "model/config.h"
#include "model/parameters.h"

using qdelta::fuzz::expect;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return 0;
  qdelta::fuzz::may_refuse(
      [&] {
        const qdelta::ModelConfig config = qdelta::config_from_json(json);
        const nlohmann::json written = qdelta::config_to_json(config);
        const nlohmann::json again = qdelta::config_to_json(qdelta::config_from_json(written));
        expect(again == written, "a config that changes");
        if (config.num_hidden_layers > 64) return;  // their places take a while
        const qdelta::ParameterLayout layout(config);
        expect(layout.parameters() > 0 && layout.parameters() <= layout.size, "parameters without a place");
        for (const auto& tensor : layout.tensors) {
          expect(tensor.slot.exists() && tensor.slot.offset + tensor.slot.shape.elements() <= layout.size,
                 tensor.name.c_str());
        }
      },
      qdelta::Status::invalid_argument);
  return 0;
}
