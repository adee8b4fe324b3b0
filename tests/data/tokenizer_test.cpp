// Finding tokenizers, bytes, what is not UTF-8, streams; and files that are not what they should be.
#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "data/byte_alphabet.h"
#include "data/byte_tokenizer.h"
#include "data/json_tokenizer.h"
#include "data/unicode.h"
#include "data_testing.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

using testing::expect_error;
using testing::fixture;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;
using Ids = std::vector<std::int32_t>;
using nlohmann::json;

// A tokenizer.json as small as can be: the characters a to c, and two merges.
json small() {
  return json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": ["a b", "ab c"]}})");
}
std::unique_ptr<Tokenizer> make(const json& file) { return make_json_tokenizer(file.dump(), "label", {}, {}); }

void refuse(Status status, const std::vector<std::string>& pieces, const std::function<void(json&)>& change) {
  json file = small();
  change(file);
  std::vector<std::string> all = pieces;
  all.emplace_back("label: ");
  expect_error(status, all, [&] { return make(file); });
}

TEST(ByteTokenizer, BytesAreIds) {
  const auto bytes = load_tokenizer("bytes");
  EXPECT_EQ(bytes->vocab_size(), 258);
  EXPECT_EQ(bytes->bos(), 256);
  EXPECT_EQ(bytes->eos(), 257);
  EXPECT_EQ(bytes->encode("a\xff\n"), (Ids{97, 255, 10}));
  EXPECT_EQ(bytes->encode_with_special("a"), (Ids{256, 97}));
  EXPECT_EQ(bytes->encode(""), Ids{});
  EXPECT_EQ(bytes->decode(Ids{256, 104, 105, 257}), "hi");
  EXPECT_EQ(bytes->decode(Ids{104, 257}, Tokenizer::Special::keep), "h<eos>");
  EXPECT_EQ(bytes->decode(Ids{-1, 104, 300}), "h");
  EXPECT_EQ(bytes->decode(Ids{0xc3, 0xa9, 0xff}), "\xc3\xa9\xef\xbf\xbd");
  EXPECT_EQ(bytes->decode_bytes(Ids{0xc3, 0xff}), "\xc3\xff");
  for (std::int32_t id = 0; id < 258; ++id) EXPECT_EQ(bytes->id_of(bytes->token(id)), id);
}

TEST(ByteTokenizer, EveryByteComesBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto bytes = load_tokenizer("bytes");
  EXPECT_EQ(bytes->decode_bytes(bytes->encode(all)), all);
}

TEST(TokenStream, HoldsBackWhatIsNotWhole) {
  const auto bytes = load_tokenizer("bytes");
  TokenStream stream(*bytes);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xf0), "");
  EXPECT_EQ(stream.push(0x9f), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\xf0\x9f\x98\x80");
  EXPECT_EQ(stream.push(257), "");
  EXPECT_EQ(stream.push(0xe2), "");
  EXPECT_EQ(stream.push('b'),
            "\xef\xbf\xbd"
            "b");  // the character will not become whole
  EXPECT_EQ(stream.push(0xff), "\xef\xbf\xbd");
  EXPECT_EQ(stream.push(0xe2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.push('c'), "c");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TokenStream, RandomIdsAreAlwaysValidText) {
  for (const char* name :
       {"gpt2_style.json", "llama2_style.json", "metaspace_style.json", "bpe.model", "unigram.model"}) {
    const auto tokenizer = load_tokenizer(fixture(name));
    Random random(11);
    for (int i = 0; i < 200; ++i) {
      TokenStream stream(*tokenizer);
      Ids ids;
      std::string text;
      for (std::int64_t n = random.integer(1, 40); n > 0; --n) {
        ids.push_back(static_cast<std::int32_t>(random.integer(0, tokenizer->vocab_size() + 3)));
        const std::string piece = stream.push(ids.back());
        ASSERT_FALSE(first_invalid_utf8(piece)) << name << ": " << shown(piece);
        text += piece;
      }
      text += stream.finish();
      const std::string whole = tokenizer->decode(ids);
      ASSERT_FALSE(first_invalid_utf8(whole));
      if (whole.find("\xef\xbf\xbd") == std::string::npos) {
        EXPECT_EQ(text, whole) << name;
      }
    }
  }
}

TEST(InvalidText, BecomesReplacementCharacters) {
  // Of each, one for the longest part that could have begun a character: as in Rust and Python.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xff", "a\xef\xbf\xbd"},
      {"\xe2\x96", "\xef\xbf\xbd"},
      {"\xe2\x96z", "\xef\xbf\xbdz"},
      {"\xf0\x9f\x98", "\xef\xbf\xbd"},
      {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xf4\x90", "\xef\xbf\xbd\xef\xbf\xbd"}};
  for (const auto& [bad, good] : cases) EXPECT_EQ(unicode::with_replacements(bad), good) << shown(bad);
  for (const char* name : {"gpt2_style.json", "llama2_style.json", "qwen_style.json", "bpe.model", "unigram.model"}) {
    const auto tokenizer = load_tokenizer(fixture(name));
    for (const auto& [bad, good] : cases) EXPECT_EQ(tokenizer->encode(bad), tokenizer->encode(good)) << name;
  }
}

TEST(Threads, ShareATokenizer) {
  for (const char* name : {"llama3_style.json", "bpe.model"}) {
    const auto tokenizer = load_tokenizer(fixture(name));
    const std::string text =
        "The river runs past the mill; in 1984 it's been a loop of loops. \xd0\xa0\xd0\xb5\xd0\xba\xd0\xb0";
    const Ids expected = tokenizer->encode(text);
    std::vector<std::thread> threads;
    std::vector<int> wrong(4);
    for (std::size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i)
          wrong[t] += tokenizer->encode(text) != expected || tokenizer->decode(expected).empty();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4)) << name;
  }
}

TEST(LoadTokenizer, PairOfFilesUnderEitherName) {
  // GPT-2's files out of the fixture that is made like it.
  const json file = json::parse(read_file(fixture("gpt2_style.json")));
  std::string merges = "#version: 0.2\n";
  for (const json& merge : file["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  const auto expected = load_tokenizer(fixture("gpt2_style.json"));
  const std::string text = "The river's 1984th mill, <|end|>\n\n don't \xe6\xb2\xb3";
  const std::vector<std::pair<std::string, std::string>> names = {{"vocab.json", "merges.txt"},
                                                                  {"encoder.json", "vocab.bpe"}};
  for (const auto& [vocabulary_name, merges_name] : names) {
    const TemporaryFolder folder;
    write_file(folder.file(vocabulary_name), file["model"]["vocab"].dump());
    write_file(folder.file(merges_name), merges);
    for (const std::string& spec : {folder.path(), folder.file(vocabulary_name), folder.file(merges_name)}) {
      const auto tokenizer = load_tokenizer(spec);
      // <|end|> is a special token there, but only text here: the files do not tell.
      EXPECT_EQ(tokenizer->encode("The river's 1984th mill"), expected->encode("The river's 1984th mill"));
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
  }
}

TEST(LoadTokenizer, ForGpt2TheEndOfTextIsSpecial) {
  json vocabulary = json::parse(read_file(fixture("gpt2_style.json")))["model"]["vocab"];
  const std::int32_t next = static_cast<std::int32_t>(vocabulary.size());
  vocabulary["<|endoftext|>"] = next;
  const auto tokenizer = make_gpt2_tokenizer(vocabulary.dump(), "vocab", "", "merges", {}, {});
  EXPECT_EQ(tokenizer->bos(), next);
  EXPECT_EQ(tokenizer->eos(), next);
  EXPECT_EQ(tokenizer->encode("<|endoftext|>"), Ids{next});
  EXPECT_EQ(tokenizer->decode(Ids{next}), "");
}

TEST(LoadTokenizer, RolesComeFromTheFilesBeside) {
  const TemporaryFolder folder;
  write_file(folder.file("tokenizer.json"), read_file(fixture("llama2_style.json")));
  EXPECT_EQ(load_tokenizer(folder.path())->bos(), 1);
  EXPECT_EQ(load_tokenizer(folder.path())->eos(), 2);
  EXPECT_EQ(load_tokenizer(folder.path())->pad(), std::nullopt);
  write_file(folder.file("tokenizer_config.json"),
             R"({"bos_token": {"content": "</s>"}, "eos_token": "<s>", "pad_token": "<unk>", "other": [1]})");
  EXPECT_EQ(load_tokenizer(folder.path())->bos(), 2);
  EXPECT_EQ(load_tokenizer(folder.path())->eos(), 1);
  EXPECT_EQ(load_tokenizer(folder.path())->pad(), 0);
  const TemporaryFolder copy;
  save_tokenizer(*load_tokenizer(folder.path()), copy.path());
  EXPECT_EQ(load_tokenizer(copy.path())->bos(), 2);

  write_file(folder.file("tokenizer_config.json"), R"({"bos_token": 7})");
  expect_error(Status::corrupt, {"tokenizer_config.json", "bos_token", "string"},
               [&] { return load_tokenizer(folder.path()); });
}

// As the Hugging Face library reads such a folder.
TEST(LoadTokenizer, SpecialTokensAreTextWhereTheConfigSaysSo) {
  const TemporaryFolder folder;
  write_file(folder.file("tokenizer.json"), read_file(fixture("llama3_style.json")));
  const auto found = load_tokenizer(folder.path());
  const std::string text = "mill" + found->token(*found->bos());
  EXPECT_EQ(found->encode(text).back(), *found->bos());
  write_file(folder.file("tokenizer_config.json"), R"({"split_special_tokens": true})");
  const auto split = load_tokenizer(folder.path());
  EXPECT_NE(split->encode(text).back(), *found->bos());
  EXPECT_EQ(split->decode(split->encode(text)), text);
  EXPECT_EQ(split->encode_with_special("mill"), found->encode_with_special("mill"));
  EXPECT_NE(split->fingerprint(), found->fingerprint());
}

TEST(LoadTokenizer, SentencePieceAddsWhatTheConfigSays) {
  const TemporaryFolder folder;
  write_file(folder.file("tokenizer.model"), read_file(fixture("bpe.model")));
  const Ids plain = load_tokenizer(folder.path())->encode("mill");
  Ids with_bos = plain;
  with_bos.insert(with_bos.begin(), 1);
  EXPECT_EQ(load_tokenizer(folder.path())->encode_with_special("mill"), with_bos);
  write_file(folder.file("tokenizer_config.json"), R"({"add_bos_token": false, "add_eos_token": true})");
  Ids with_eos = plain;
  with_eos.push_back(2);
  EXPECT_EQ(load_tokenizer(folder.path())->encode_with_special("mill"), with_eos);
}

// Others find the tokenizer of bytes as one of Hugging Face's, which gives the same ids.
TEST(LoadTokenizer, BytesAreSavedAsATokenizerJsonToo) {
  const TemporaryFolder folder;
  save_tokenizer(ByteTokenizer(), folder.path());
  EXPECT_EQ(folder.names(),
            (std::vector<std::string>{"qdelta_tokenizer.json", "tokenizer.json", "tokenizer_config.json"}));
  const auto published = load_tokenizer(folder.file("tokenizer.json"));
  const ByteTokenizer bytes;
  for (const char* text : {"", "a b\n", "  na\xc3\xafve \xf0\x9f\x8c\x8d", "<eos", "a<eos> <bos>", "\t\x01\x7f"}) {
    EXPECT_EQ(published->encode(text), bytes.encode(text)) << text;
    EXPECT_EQ(published->encode_with_special(text), bytes.encode_with_special(text)) << text;
    EXPECT_EQ(published->decode(bytes.encode(text)), text);
  }
  EXPECT_EQ(published->vocab_size(), bytes.vocab_size());
  EXPECT_EQ(published->bos(), bytes.bos());
  EXPECT_EQ(published->eos(), bytes.eos());
}

TEST(LoadTokenizer, TheOwnFileDecidesBetweenSeveral) {
  const TemporaryFolder folder;
  write_file(folder.file("tokenizer.json"), read_file(fixture("gpt2_style.json")));
  save_tokenizer(*load_tokenizer(fixture("bpe.model")), folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->fingerprint(), load_tokenizer(fixture("bpe.model"))->fingerprint());
  save_tokenizer(ByteTokenizer(), folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->name(), "bytes");
  write_file(folder.file("qdelta_tokenizer.json"), R"({"tokenizer": "../bytes"})");
  expect_error(Status::corrupt, {"qdelta_tokenizer.json", "same folder"},
               [&] { return load_tokenizer(folder.path()); });
}

TEST(LoadTokenizer, FingerprintsInShardsStayTheSame) {
  struct Fingerprints {
    const char* name;
    std::uint64_t present, version1;  // the second as qdelta 0.1 wrote it
  };
  for (const auto& [name, present, version1] :
       {Fingerprints{"bytes", 0xd30345fef8ac3570U, 0x0e161285becc5601U},
        Fingerprints{"gpt2_style.json", 0xbb955d0d3969230aU, 0x7bc9daf91b8a919eU},
        Fingerprints{"llama2_style.json", 0x73b67f1211721589U, 0x6527b102841d8a86U},
        Fingerprints{"bpe.model", 0x19efa1b00880ac66U, 0x16f44a1128789074U},
        Fingerprints{"unigram.model", 0x8c86cc93f402439aU, 0xdf85900a48683f02U}}) {
    const auto tokenizer = load_tokenizer(std::string_view(name) == "bytes" ? name : fixture(name));
    EXPECT_EQ(tokenizer->fingerprint(), present) << name;
    EXPECT_EQ(tokenizer->fingerprint_v1(), version1) << name;
  }
}

TEST(LoadTokenizer, WhatIsNone) {
  const TemporaryFolder folder;
  expect_error(Status::io, {"there is no tokenizer", "nowhere"},
               [&] { return load_tokenizer(folder.file("nowhere")); });
  expect_error(Status::invalid_argument, {"holds no tokenizer", "tokenizer.json"},
               [&] { return load_tokenizer(folder.path()); });
  write_file(folder.file("notes.txt"), "hello");
  expect_error(Status::invalid_argument, {"is no tokenizer", "SentencePiece"},
               [&] { return load_tokenizer(folder.file("notes.txt")); });
  write_file(folder.file("vocab.json"), "{}");
  expect_error(Status::io, {"merges.txt"}, [&] { return load_tokenizer(folder.file("vocab.json")); });
  write_file(folder.file("merges.txt"), "");
  expect_error(Status::unsupported, {"no token for byte 0", "byte-level"},
               [&] { return load_tokenizer(folder.path()); });
  write_file(folder.file("x.model"), "not a model");
  expect_error(Status::corrupt, {"x.model", "SentencePiece"}, [&] { return load_tokenizer(folder.file("x.model")); });
  write_file(folder.file("x.model"), "");
  expect_error(Status::corrupt, {"x.model"}, [&] { return load_tokenizer(folder.file("x.model")); });
}

TEST(SentencePiece, CutModelsAreRefused) {
  const std::string whole = read_file(fixture("bpe.model"));
  const TemporaryFolder folder;
  for (std::size_t size = 1; size < whole.size(); size += whole.size() / 37) {
    write_file(folder.file("cut.model"), whole.substr(0, size));
    try {
      static_cast<void>(load_tokenizer(folder.file("cut.model")));  // a cut between two fields may leave a model
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::corrupt) << error.what();
    }
  }
}

TEST(TokenizerJson, SmallestWorks) {
  const auto tokenizer = make(small());
  EXPECT_EQ(tokenizer->encode("abcab"), (Ids{4, 3}));
  EXPECT_EQ(tokenizer->encode("axb"), (Ids{3}));  // a character that nothing covers is left out, as in the library
  EXPECT_EQ(tokenizer->decode(Ids{4, 99, -1, 2}), "abc c");
  EXPECT_EQ(tokenizer->token(3), "ab");
  EXPECT_EQ(tokenizer->token(99), "");
  EXPECT_EQ(tokenizer->id_of("abc"), 4);
  EXPECT_EQ(tokenizer->id_of("x"), std::nullopt);
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
}

TEST(TokenizerJson, NotJson) {
  for (const char* text : {"", "{", "[1", "{\"model\": }", "\xff", "nul"}) {
    expect_error(Status::corrupt, {"label: "}, [&] { return make_json_tokenizer(text, "label", {}, {}); });
  }
  expect_error(Status::corrupt, {"NUL"}, [&] { return make_json_tokenizer(std::string("{}\0", 3), "label", {}, {}); });
  expect_error(Status::corrupt, {"levels"},
               [&] { return make_json_tokenizer(std::string(500, '[') + std::string(500, ']'), "label", {}, {}); });
  expect_error(Status::corrupt, {"object"}, [&] { return make_json_tokenizer("[]", "label", {}, {}); });
  expect_error(Status::corrupt, {"model is missing"}, [&] { return make_json_tokenizer("{}", "label", {}, {}); });
}

TEST(TokenizerJson, WhatIsNotSupportedIsNamed) {
  refuse(Status::unsupported, {"model", "Trigram", "Unigram"}, [](json& j) { j["model"]["type"] = "Trigram"; });
  refuse(Status::unsupported, {"version", "2.0"}, [](json& j) { j["version"] = "2.0"; });
  refuse(Status::unsupported, {"model.dropout"}, [](json& j) { j["model"]["dropout"] = 0.1; });
  refuse(Status::unsupported, {"model", "\"new_idea\""}, [](json& j) { j["model"]["new_idea"] = true; });
  refuse(Status::unsupported, {"normalizer", "Magic", "NFKC"}, [](json& j) { j["normalizer"] = {{"type", "Magic"}}; });
  refuse(Status::unsupported, {"normalizer.normalizers[1]", "Magic"}, [](json& j) {
    j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Magic"}}}}};
  });
  refuse(Status::unsupported, {"pre_tokenizer", "Magic", "UnicodeScripts"}, [](json& j) {
    j["pre_tokenizer"] = {{"type", "Magic"}};
  });
  refuse(Status::unsupported, {"decoder", "Magic", "WordPiece"}, [](json& j) { j["decoder"] = {{"type", "Magic"}}; });
  refuse(Status::unsupported, {"decoder.suffix", "empty"}, [](json& j) {
    j["decoder"] = {{"type", "BPEDecoder"}, {"suffix", ""}};
  });
  refuse(Status::unsupported, {"decoder.stop"}, [](json& j) {
    j["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}};
  });
  refuse(Status::unsupported, {"post_processor", "Magic"}, [](json& j) { j["post_processor"] = {{"type", "Magic"}}; });
  refuse(Status::unsupported, {"behavior", "Sideways"}, [](json& j) {
    j["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Sideways"}, {"invert", false}};
  });
  refuse(Status::unsupported, {"pattern", "empty"}, [](json& j) {
    j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
  });
  refuse(Status::unsupported, {"pattern.Regex", "Emoji"}, [](json& j) {
    j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", R"(\p{Emoji})"}}}, {"content", "x"}};
  });
}

TEST(TokenizerJson, WhatIsWrongIsNamed) {
  refuse(Status::corrupt, {"model.vocab", "object"}, [](json& j) { j["model"]["vocab"] = 1; });
  refuse(Status::corrupt, {"model.vocab", "\"a\"", "whole number"}, [](json& j) { j["model"]["vocab"]["a"] = -1; });
  refuse(Status::corrupt, {"model.vocab", "\"a\""}, [](json& j) { j["model"]["vocab"]["a"] = "0"; });
  refuse(Status::corrupt, {"model", "same id 1"}, [](json& j) { j["model"]["vocab"]["a"] = 1; });
  refuse(Status::corrupt, {"model", "2000000000"}, [](json& j) { j["model"]["vocab"]["a"] = 2000000000; });
  refuse(Status::corrupt, {"model", "merge 0", "\"x\""}, [](json& j) { j["model"]["merges"][0] = "x b"; });
  refuse(Status::corrupt, {"model", "merge 0", "\"ba\""}, [](json& j) { j["model"]["merges"][0] = "b a"; });
  refuse(Status::corrupt, {"model.merges", "merge 1", "\"a b c\""}, [](json& j) { j["model"]["merges"][1] = "a b c"; });
  refuse(Status::corrupt, {"model.merges", "merge 1"}, [](json& j) { j["model"]["merges"][1] = json::array({"a"}); });
  refuse(Status::corrupt, {"model", "unknown token", "\"?\""}, [](json& j) { j["model"]["unk_token"] = "?"; });
  refuse(Status::corrupt, {"model: merges is missing"}, [](json& j) { j["model"].erase("merges"); });
  refuse(Status::corrupt, {"pre_tokenizer", "type"}, [](json& j) { j["pre_tokenizer"] = json::object(); });
  refuse(Status::corrupt, {"pre_tokenizer", "add_prefix_space"}, [](json& j) {
    j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", "yes"}};
  });
  refuse(Status::corrupt, {"post_processor.special_tokens", "\"<s>\""}, [](json& j) {
    j["post_processor"] = {{"type", "TemplateProcessing"},
                           {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                           {"special_tokens", json::object()}};
  });
}

// Arrays are called so: whether braces around one value make an array depends on the compiler.
json added(const std::string& content, std::int64_t id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

TEST(TokenizerJson, AddedTokensHaveTheIdsThatTheLibraryWouldGive) {
  json file = small();
  file["added_tokens"] = json::array({added("<s>", 5), added("ab", 3), added("<e>", 6)});
  EXPECT_EQ(make(file)->encode("a<s>ab<e>c"), (Ids{0, 5, 3, 6, 2}));
  EXPECT_EQ(make(file)->vocab_size(), 7);
  refuse(Status::corrupt, {"added_tokens[0]", "\"<s>\"", "id 9", "5"},
         [](json& j) { j["added_tokens"] = json::array({added("<s>", 9)}); });
  refuse(Status::corrupt, {"added_tokens[0]", "\"ab\"", "vocabulary", "3"},
         [](json& j) { j["added_tokens"] = json::array({added("ab", 5)}); });
  refuse(Status::corrupt, {"added_tokens[1]", "twice"}, [](json& j) {
    j["added_tokens"] = json::array({added("<s>", 5), added("<s>", 5)});
  });
  refuse(Status::corrupt, {"added_tokens[0]", "empty"},
         [](json& j) { j["added_tokens"] = json::array({added("", 5)}); });
}

TEST(ByteAlphabet, ThereAndBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const ByteAlphabet& alphabet = ByteAlphabet::get();
  EXPECT_FALSE(first_invalid_utf8(alphabet.encode(all)));
  EXPECT_EQ(alphabet.decode(alphabet.encode(all)), all);
  EXPECT_EQ(alphabet.encode(" \n!"), "\xc4\xa0\xc4\x8a!");  // GPT-2's G and C with dots
  EXPECT_EQ(alphabet.decode(" "), std::nullopt);
  EXPECT_EQ(alphabet.decode("\xe6\xb2\xb3"), std::nullopt);
}

}  // namespace
}  // namespace qdelta
