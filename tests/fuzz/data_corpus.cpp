// What fuzz_data.cpp starts from: tokenizers and SentencePiece models, with the byte in front that says which.
#include "corpus.h"

namespace {

constexpr std::string_view kTokenizers[] = {
    R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4},"merges":["a b","ab c"]}})",
    R"({"added_tokens":[{"id":3,"content":"<s>","single_word":true,"lstrip":true,"rstrip":false,"normalized":true,"special":true}],)"
    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"},{"type":"Strip","strip_left":true,"strip_right":true},)"
    R"({"type":"Prepend","prepend":"x"},{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},)"
    R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true},)"
    R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},)"
    R"({"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
    R"("model":{"type":"BPE","unk_token":"?","fuse_unk":true,"byte_fallback":true,"vocab":{"?":0,"\u2581":1,"a":2},"merges":[]}})",
    R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'ll)|[^\\s\\p{L}]?\\p{L}+|\\p{N}{1,3}|[a-z&&[^q]]|\\s+(?!\\S)|\\s+"},)"
    R"("behavior":"Isolated","invert":false},{"type":"Digits","individual_digits":true},{"type":"Punctuation","behavior":"Contiguous"},)"
    R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":true}]},"decoder":{"type":"ByteLevel"},)"
    R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
    R"("pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[0],"tokens":["<s>"]}}},)"
    R"("model":{"type":"BPE","ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"l":4,"ll":5},"merges":[["a","b"],["l","l"]]}})",
};

constexpr std::string_view kWords[] = {"1e9",
                                       "\\\\p{L}",
                                       "\\\\p{^Han}",
                                       "\\\\s",
                                       "\\\\w",
                                       "\\\\d+",
                                       "(?i:",
                                       "(?:",
                                       "(?!",
                                       "(?<=",
                                       "[^",
                                       "&&",
                                       "|",
                                       "*",
                                       "+?",
                                       "{2,3}",
                                       ")",
                                       "\\u2581",
                                       "\"NFD\"",
                                       "\"Whitespace\"",
                                       "\"Removed\"",
                                       "\"MergedWithNext\"",
                                       "\"MergedWithPrevious\"",
                                       "\"always\"",
                                       "\"never\"",
                                       "\"Sequence\"",
                                       "\"Split\"",
                                       "<0x0A>"};

// A field of a protocol buffer: a number, or bytes.
std::string number_field(int field, int value) { return {static_cast<char>(field * 8), static_cast<char>(value)}; }
std::string bytes_field(int field, const std::string& bytes) {
  return std::string{static_cast<char>(field * 8 + 2), static_cast<char>(bytes.size())} + bytes;
}
std::string sentencepiece_model() {
  return bytes_field(1, bytes_field(1, "<unk>") + number_field(3, 2)) +
         bytes_field(1, bytes_field(1, "a") + std::string("\x15\0\0\0\0", 5) + number_field(3, 4)) +
         bytes_field(2, number_field(3, 2)) +
         bytes_field(3, bytes_field(1, "identity") + number_field(3, 1) + number_field(4, 0)) +
         bytes_field(5, bytes_field(2, "x"));
}

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() {
  std::vector<std::string> all;
  for (const std::string_view tokenizer : kTokenizers) all.push_back(std::string(1, '\1').append(tokenizer));
  all.push_back(std::string(1, '\2').append(sentencepiece_model()));
  return all;
}

std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
