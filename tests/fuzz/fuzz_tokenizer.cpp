// Feeds bytes to the reader of tokenizer.json. What it takes has to encode some texts and decode them again: into valid
// UTF-8, all at once and token by token, within the limits on steps and memory.
//
// After the last line break that a NUL follows there may be another text to encode.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/json_tokenizer.h"
#include "data/tokenizer.h"
#include "expect.h"
#include "io/untrusted_text.h"

namespace {

using qdelta::Tokenizer;
using qdelta::fuzz::expect;
using qdelta::fuzz::may_refuse;

constexpr std::string_view kSeparator{"\n\0", 2};
constexpr std::string_view kTexts[] = {"",
                                       "abcab",
                                       "  Hello, wor\xc3\xa9ld! 123\n\n\t x'll ",
                                       "<s>a</s> <0x0A> \xe2\x96\x81 \xe6\xb2\xb3\xf0\x9f\x98\x80 e\xcc\x81",
                                       "\xff\xe2\x96",
                                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"};

void use(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  for (const std::int32_t id : ids) expect(id >= 0 && id < tokenizer.vocab_size(), "an id outside the vocabulary");
  expect(tokenizer.encode(text) == ids, "other ids when asked again");
  expect(
      tokenizer.encode_with_special(text).size() == ids.size() + tokenizer.prefix().size() + tokenizer.suffix().size(),
      "special tokens that are not those of the file");
  for (const Tokenizer::Special special : {Tokenizer::Special::skip, Tokenizer::Special::keep}) {
    expect(!qdelta::first_invalid_utf8(tokenizer.decode(ids, special)), "a text that is not UTF-8");
  }
  qdelta::TokenStream stream(tokenizer);
  for (const std::int32_t id : ids) expect(!qdelta::first_invalid_utf8(stream.push(id)), "a broken piece");
  expect(!qdelta::first_invalid_utf8(stream.finish()), "a broken end");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view file(reinterpret_cast<const char*>(data), size);
  std::string_view own_text;
  if (const std::size_t at = file.rfind(kSeparator); at != std::string_view::npos) {
    own_text = file.substr(at + kSeparator.size());
    file = file.substr(0, at);
  }
  may_refuse([&] {
    const auto tokenizer = qdelta::make_json_tokenizer(std::string(file), "fuzz", {}, {});
    may_refuse([&] { use(*tokenizer, own_text); });
    for (const std::string_view text : kTexts) may_refuse([&] { use(*tokenizer, text); });
    // Any ids may come from a model, also those that no text would give.
    may_refuse([&] {
      std::vector<std::int32_t> ids;
      for (std::int32_t id = -1; id <= tokenizer->vocab_size() && id < 64; ++id) ids.insert(ids.end(), {id, id});
      expect(!qdelta::first_invalid_utf8(tokenizer->decode(ids)), "a text that is not UTF-8");
    });
  });
  return 0;
}
