// Feeds bytes to the reader of SentencePiece models.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "data/sentencepiece_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(qdelta::read_sentencepiece_model({reinterpret_cast<const char*>(data), size}));
  return 0;
}
