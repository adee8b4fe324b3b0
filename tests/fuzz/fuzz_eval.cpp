// Feeds files to the readers of data sets: the first line is the file's name (piqa.jsonl), the rest what is in it. What
// is accepted must be examples with tokens to score.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "data/byte_tokenizer.h"
#include "eval/tasks.h"
#include "expect.h"
#include "files.h"

namespace {

using qdelta::fuzz::expect;

constexpr std::array<std::string_view, 15> kTasks{
    "lambada_openai", "wikitext", "arc_easy", "arc_challenge", "hellaswag", "piqa", "winogrande", "boolq",
    "openbookqa",     "swde",     "fda",      "squad",         "triviaqa",  "nq",   "drop"};
constexpr std::array<std::string_view, 3> kEndings{"jsonl", "json", "txt"};

template <class Names>
bool is_one_of(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void read(const std::string& folder, const std::string& task) {
  using namespace qdelta::eval;  // NOLINT(google-build-using-namespace): most names here
  static const qdelta::ByteTokenizer tokenizer;
  static const RequestEncoder encoder(tokenizer, Bos::automatic, 64);
  TaskSettings settings;
  settings.data = folder;
  settings.recall_length = 100;
  const TaskList made = make_tasks(tasks_named(task), {settings, &encoder, {}});
  expect(made.size() == 1 && made[0]->size() > 0, "a task without examples");
  for (std::int64_t i = 0; i < std::min<std::int64_t>(made[0]->size(), 8); ++i) {
    expect(made[0]->length(i) > 0, "an example without tokens");
    expect(made[0]->description(i).is_object(), "an example that cannot be described");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const qdelta::testing::TemporaryFolder folder;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t line = std::min(input.find('\n'), size);
  const std::string_view name = input.substr(0, line);
  const std::size_t point = std::min(name.find('.'), line);
  if (!is_one_of(kTasks, name.substr(0, point)) || !is_one_of(kEndings, name.substr(std::min(point + 1, line))))
    return 0;
  const std::string path = folder.file(name);
  qdelta::testing::write_file(path, input.substr(std::min(line + 1, size)));
  qdelta::fuzz::may_refuse([&] { read(folder.path(), std::string(name.substr(0, point))); });
  std::filesystem::remove(path);
  return 0;
}
