// What fuzz_tokenizer.cpp starts from: a tokenizer.json of every model, and between them nearly every part there is.
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
    R"({"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},)"
    R"("pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]},)"
    R"("decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece","unk_token":"[UNK]",)"
    R"("continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"a":1,"[CLS]":2,"[SEP]":3,"##b":4,"##c":5,"hello":6,"\u00e9":7}}})",
    R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"Nmt"},{"type":"NFD"},{"type":"StripAccents"},)"
    R"({"type":"Replace","pattern":{"Regex":" {2,}|(\\w)\\1|\\h\\b"},"content":" "}]},"pre_tokenizer":{"type":"Metaspace","replacement":"\u2581",)"
    R"("prepend_scheme":"always","split":false},"decoder":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true},)"
    R"("model":{"type":"Unigram","unk_id":0,"byte_fallback":true,"vocab":[["<unk>",0],["\u2581",-2.5],["a",-3.25],["ab",-3.7467351734612158],["aa",-7],["<0x78>",-1e1]]}})",
    R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"UnicodeScripts"},{"type":"FixedLength","length":3},{"type":"CharDelimiterSplit","delimiter":"x"},)"
    R"({"type":"Split","pattern":{"Regex":"[[:punct:]]+|\\X"},"behavior":"MergedWithPrevious","invert":true}]},)"
    R"("decoder":{"type":"CTC","pad_token":"<pad>","word_delimiter_token":"|","cleanup":true},)"
    R"("model":{"type":"WordLevel","unk_token":"?","vocab":{"?":0,"abc":1,"ab":2,"<pad>":3}}})",
    R"({"normalizer":{"type":"ByteLevel"},"pre_tokenizer":{"type":"Whitespace"},"decoder":{"type":"Sequence","decoders":[{"type":"BPEDecoder","suffix":"</w>"},)"
    R"({"type":"Replace","pattern":{"Regex":"a|^"},"content":"aa"}]},"post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel","add_prefix_space":true,)"
    R"("trim_offsets":true},{"type":"RobertaProcessing","sep":["</s>",1],"cls":["<s>",0],"trim_offsets":true,"add_prefix_space":true}]},)"
    R"("model":{"type":"BPE","continuing_subword_prefix":"##","end_of_word_suffix":"</w>","dropout":null,"unk_token":"a","vocab":{"a":0,"##b":1,"##b</w>":2,"ab":3,"abb</w>":4},)"
    R"("merges":["a ##b","ab ##b</w>"]}})",
    R"({"normalizer":{"type":"Precompiled","precompiled_charsmap":")"
    "AAQAAAAsAAAKDQAAAQAAgAcAAIDMDAIAggkAAA0RAAAJAACAzAACAIENAAAOAACAqiEAAIAoAgCLDQAAAAAAgKB9AAADAACAgAwC"
    "AIBBAAALAACAgR0AALawAwDv/AIAvkwCABEAAIAYAAAAngkAABoAAAAdAAAAkcgCAB8AAAAeAAAAIQAAAKzQAgAjAAAAIgAAACUA"
    "AAAkAAAAJwAAACYAAAApAAAAKAAAACsAAAAqAAAALQAAACwAAAAvAAAALgAAAL1MAgAwAAAAMwAAADIAAAA1AAAANAAAADcAAAA2"
    "AAAAOQAAADgAAAA7AAAAOgAAAD0AAAA8AAAAPwAAAD4AAABBAAAAQAAAAEMAAABCAAAARQAAAEQAAABHAAAARgAAAEkAAABCBAIA"
    "QSUBAEoAAABNAAAATAAAAE8AAABOAAAAUQAAAFAAAABTAAAAUgAAAFUAAABUAAAAVwAAAFYAAABZAAAAWAAAAFsAAABaAAAAXQAA"
    "AFwAAABfAAAAXgAAAGEAAABgAAAAYwAAAGIAAABlAAAAZAAAAGcAAABmAAAAaQAAAGgAAABrAAAAagAAAG0AAABsAAAAZagCAG4A"
    "AABxAAAAcAAAAHMAAAByAAAAdQAAAHQAAAB3AAAAdgAAAHkAAAB4AAAAewAAAHoAAAB9AAAAfAAAAH8AAAB+AAAAgQAAAIAAAACD"
    "AAAAggAAAIUAAACEAAAAhwAAAIYAAACJAAAAiAAAAIsAAACKAAAAjQAAAIwAAACPAAAAjgAAAJEAAACQAAAAkwAAAJIAAACVAAAA"
    "lAAAAJcAAACWAAAAmQAAAJgAAACbAAAAmgAAAJ0AAACcAAAAnwAAAJ4AAAChAAAAoAAAAKMAAACiAAAApQAAAKQAAACnAAAApgAA"
    "AKkAAACoAAAAqwAAAKoAAACtAAAArAAAAK8AAACuAAAAsQAAALAAAACzAAAAsgAAALUAAAC0AAAAtwAAALYAAAC5AAAAuAAAALsA"
    "AAC6AAAAvQAAALwAAAC/AAAAvgAAAMEAAADAAAAAwwAAAMIAAADFAAAAxAAAAMcAAADGAAAAyQAAAMKgAQDLAAAAygAAAM0AAADM"
    "AAAAzwAAAM4AAADRAAAA0AAAANMAAADSAAAA1QAAANQAAADXAAAA1gAAANkAAADYAAAA2wAAANoAAADdAAAA3AAAAN8AAADeAAAA"
    "4QAAAOAAAADjAAAA4gAAAO+kAQDkAAAA5wAAAOYAAADj5AEA4pQBAOsAAADqAAAA7QAAAOwAAADvAAAA7gAAAPEAAADwAAAA8wAA"
    "APIAAAD1AAAA9AAAAPcAAAD2AAAA+QAAAPgAAAD7AAAA+gAAAP0AAAD8AAAA/wAAAP4AAAAAIAAoMSkAYQBiAGZpAMOpAOOCrAA="
    R"("},"pre_tokenizer":{"type":"Digits","individual_digits":true},)"
    R"("model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-3.25],["fi",-3.5]]}})",
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
                                       "<0x0A>",
                                       "\"Unigram\"",
                                       "\"WordPiece\"",
                                       "\"WordLevel\"",
                                       "\"BertNormalizer\"",
                                       "\"BertPreTokenizer\"",
                                       "\"ByteLevel\"",
                                       "\"Fuse\"",
                                       "\"CTC\"",
                                       "{\"type\":\"NFKD\"},",
                                       "{\"type\":\"ByteLevel\"},",
                                       "[[:alpha:]]",
                                       "\\\\X",
                                       "\\\\p{Word}",
                                       "(?#",
                                       "\"UnicodeScripts\"",
                                       "\\\\1",
                                       "\\\\b",
                                       "##",
                                       "</w>"};

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() {
  std::vector<std::string> all;
  for (const std::string_view tokenizer : kTokenizers) all.emplace_back(tokenizer);
  // And one with a text of its own.
  all.push_back(all.back() + std::string("\n\0 abb</w>", 11));
  return all;
}

std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
