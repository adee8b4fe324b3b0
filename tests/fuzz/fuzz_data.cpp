// Feeds bytes to the readers of tokenizers: as a SentencePiece model, and as a tokenizer.json, which then has to encode
// and decode. The first byte says which.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe_tokenizer.h"
#include "data/sentencepiece_model.h"
#include "data/tokenizer.h"
#include "expect.h"
#include "io/untrusted_text.h"

namespace {

using qdelta::fuzz::expect;
using qdelta::fuzz::may_refuse;

constexpr std::string_view kTexts[] = {"", "abcab", "  Hello, wor\xc3\xa9ld! 123\n\n\t x'll ",
                                       "<s>a</s> <0x0A> \xe2\x96\x81 \xe6\xb2\xb3\xf0\x9f\x98\x80 e\xcc\x81",
                                       "\xff\xe2\x96"};

void read_tokenizer(std::string_view file) {
  may_refuse([&] {
    const auto tokenizer = qdelta::make_bpe_tokenizer(std::string(file), "fuzz", {}, {});
    for (const std::string_view text : kTexts) {
      may_refuse([&] {
        const std::vector<std::int32_t> ids = tokenizer->encode(text);
        for (const std::int32_t id : ids)
          expect(id >= 0 && id < tokenizer->vocab_size(), "an id outside the vocabulary");
        expect(!qdelta::first_invalid_utf8(tokenizer->decode(ids)), "a text that is not UTF-8");
        qdelta::TokenStream stream(*tokenizer);
        for (const std::int32_t id : ids) expect(!qdelta::first_invalid_utf8(stream.push(id)), "a broken piece");
        static_cast<void>(stream.finish());
      });
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    read_tokenizer(input);
  } else {
    static_cast<void>(qdelta::read_sentencepiece_model(input));
  }
  return 0;
}
