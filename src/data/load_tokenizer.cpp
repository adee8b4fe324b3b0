// Finding a tokenizer's files, and leaving them in a checkpoint.
#include <array>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "data/byte_tokenizer.h"
#include "data/json_tokenizer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/special_roles.h"
#include "data/tokenizer.h"
#include "io/atomic_file.h"
#include "io/mapped_file.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnFile = "qdelta_tokenizer.json";  // names which of a folder's files is meant, or "bytes"
constexpr const char* kBytes = "bytes";
// The same pair of files under two names: those of Hugging Face and those that OpenAI published.
struct VocabularyPair {
  std::string_view vocabulary;
  std::string_view merges;
};
constexpr std::array<VocabularyPair, 2> kPairs = {{{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}}};

std::string read_whole(const std::string& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Whether there is such a file; one that cannot be looked at will give its reason when it is opened.
bool there_is(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) || error;
}

struct Beside {
  SpecialRoles roles;
  std::vector<TokenizerFile> files;
};

// What the folder's other files say about special tokens.
Beside look_beside(const fs::path& folder) {
  Beside beside;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / name;
    if (!there_is(path)) continue;
    const std::string label = path.string();
    std::string contents = read_whole(label);
    const nlohmann::json json = parse_json(contents, label);
    beside.roles.learn(JsonAt(json, label));
    beside.files.push_back({name, std::move(contents)});
  }
  return beside;
}

std::unique_ptr<Tokenizer> load_pair(const fs::path& vocabulary, const fs::path& merges) {
  Beside beside = look_beside(vocabulary.parent_path());
  return make_gpt2_tokenizer(read_whole(vocabulary.string()), vocabulary.string(), read_whole(merges.string()),
                             merges.string(), beside.roles, std::move(beside.files));
}

std::unique_ptr<Tokenizer> load_file(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const auto& [vocabulary, merges] : kPairs) {
    // With whatever stands before: gpt2_encoder.json and gpt2_vocab.bpe.
    if (name.ends_with(vocabulary)) {
      const std::string stem = name.substr(0, name.size() - vocabulary.size());
      return load_pair(path, path.parent_path() / (stem + std::string(merges)));
    }
    if (name.ends_with(merges)) {
      const std::string stem = name.substr(0, name.size() - merges.size());
      return load_pair(path.parent_path() / (stem + std::string(vocabulary)), path);
    }
  }
  if (path.extension() == ".model") {
    Beside beside = name == "tokenizer.model" ? look_beside(path.parent_path()) : Beside{};
    return make_sentencepiece_tokenizer(read_whole(path.string()), path.string(), beside.roles,
                                        std::move(beside.files));
  }
  if (path.extension() == ".json") {
    Beside beside = name == "tokenizer.json" ? look_beside(path.parent_path()) : Beside{};
    return make_json_tokenizer(read_whole(path.string()), path.string(), beside.roles, std::move(beside.files));
  }
  fail(Status::invalid_argument,
       "{} is no tokenizer: expected \"bytes\", a SentencePiece .model, a tokenizer.json, a vocab.json with merges.txt "
       "beside it, or a folder with one of these",
       path.string());
}

std::unique_ptr<Tokenizer> load_folder(const fs::path& folder) {
  if (const fs::path own = folder / kOwnFile; there_is(own)) {
    const std::string label = own.string();
    const nlohmann::json json = parse_json(read_whole(label), label);
    const JsonAt named = JsonAt(json, label).at("tokenizer");
    const std::string name = named.text();
    if (name == kBytes) return std::make_unique<ByteTokenizer>();
    if (name.empty() || fs::path(name).filename() != fs::path(name)) {
      named.corrupt("must be \"bytes\" or the name of a file in the same folder, not {}", shown(name));
    }
    return load_file(folder / name);
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (there_is(folder / name)) return load_file(folder / name);
  }
  for (const auto& [vocabulary, merges] : kPairs) {
    if (there_is(folder / vocabulary) && there_is(folder / merges)) return load_file(folder / vocabulary);
  }
  fail(Status::invalid_argument,
       "{} holds no tokenizer: no {}, tokenizer.json, tokenizer.model, nor vocab.json with merges.txt", folder.string(),
       kOwnFile);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec) {
  if (spec == kBytes) return std::make_unique<ByteTokenizer>();
  std::error_code error;
  const fs::path path(spec);
  if (fs::is_directory(path, error)) return load_folder(path);
  if (!there_is(path)) {
    fail(Status::io, "there is no tokenizer {}: expected \"bytes\", or a file or folder that exists", shown(spec));
  }
  return load_file(path);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  const bool bytes = tokenizer.files().empty();
  for (const TokenizerFile& file : bytes ? ByteTokenizer::published_files() : tokenizer.files()) {
    write_whole((fs::path(folder) / file.name).string(), file.contents);
  }
  // Last, and always: other files of a tokenizer may lie there already.
  const nlohmann::json own = {{"tokenizer", bytes ? kBytes : tokenizer.files().front().name}};
  write_whole((fs::path(folder) / kOwnFile).string(), own.dump() + "\n");
}

}  // namespace qdelta
