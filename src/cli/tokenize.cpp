// `qdelta tokenize`: texts into token shards.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "core/error.h"
#include "core/threads.h"
#include "data/documents.h"
#include "data/shards.h"
#include "data/tokenizer.h"
#include "io/regular_file.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr const char* kTokenizeHelp =
    "An input is text or, where its name ends in .jsonl or .ndjson, JSON lines with a document in each; plain, or\n"
    "compressed with gzip, xz or zstd. DIR gets tokens-00000.qdt and so on, shards.json, which lists them and is "
    "written\n"
    "last, and the tokenizer's own files, so that `qdelta train` finds them. Texts are read as they are needed: "
    "memory\n"
    "does not grow with the inputs.\n"
    "\n"
    "A file that is not UTF-8 text - Parquet, an archive, another encoding - is refused. With --bytes it is taken: "
    "bytes\n"
    "that are not UTF-8 become U+FFFD (not with the tokenizer \"bytes\"), and the documents that had some are "
    "counted.\n"
    "Documents without text are left out. The result does not depend on the number of threads.\n"
    "\n"
    "Examples:\n"
    "  qdelta tokenize --tokenizer tokenizer.json --out tokens books.jsonl.xz\n"
    "  qdelta tokenize --tokenizer llama2.model --out tokens --text-key content part-*.jsonl.zst\n"
    "  qdelta tokenize --tokenizer bytes --out tokens --paragraphs novel.txt\n"
    "  qdelta tokenize --tokenizer model/ --out tokens --document-separator '<|endoftext|>' stories.txt";

struct TokenizeOptions {
  std::string tokenizer, out, format = "auto";
  std::vector<std::string> inputs;
  DocumentOptions documents;
  bool append_eos = true, prepend_bos = false, force = false, bytes = false;
  std::int64_t shard_tokens = 100'000'000;
  int threads = 0;
  const CLI::Option* eos_given = nullptr;
};

const std::map<std::string, DocumentFormat> kFormats = {
    {"auto", DocumentFormat::automatic}, {"text", DocumentFormat::text}, {"jsonl", DocumentFormat::json_lines}};

// \n, \t, \r, \0 and \\, which are hard to type.
std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      result += text[i];
      continue;
    }
    const char next = i + 1 < text.size() ? text[++i] : '\0';
    const std::string_view from = "ntr0\\";
    const std::size_t at = next == '\0' ? std::string_view::npos : from.find(next);
    require(at != std::string_view::npos, "--document-separator {}: after a backslash must come n, t, r, 0 or another",
            shown(text));
    result += std::string_view("\n\t\r\0\\", 5)[at];
  }
  return result;
}

// How far it has come: a line that is written over on a terminal, else a line now and then.
class TokenizeProgress {
 public:
  explicit TokenizeProgress(std::uint64_t total) : total_(total), terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~TokenizeProgress() { clear(); }
  TokenizeProgress(const TokenizeProgress&) = delete;
  TokenizeProgress& operator=(const TokenizeProgress&) = delete;

  void show(std::uint64_t done, std::int64_t tokens) {
    const auto now = Clock::now();
    if (now - shown_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10000))) return;
    shown_ = now;
    const double fraction = total_ == 0 ? 1 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
    const double rate = static_cast<double>(tokens) / std::chrono::duration<double>(now - start_).count();
    const std::string numbers = fmt::format("{:3.0f} %  {} tokens  {:.0f} a second", fraction * 100, tokens, rate);
    if (!terminal_) {
      fmt::print(stderr, "tokenize: {}\n", numbers);
      return;
    }
    constexpr int kWidth = 30;
    const int full = static_cast<int>(fraction * kWidth);
    fmt::print(stderr, "\r[{:#>{}}{:.>{}}] {}\x1b[K", "", full, "", kWidth - full, numbers);
    std::fflush(stderr);
    drawn_ = true;
  }
  void clear() {
    if (drawn_) fmt::print(stderr, "\r\x1b[K");
    drawn_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::uint64_t total_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
};

// Some documents, enough to keep all threads busy.
struct DocumentBatch {
  std::vector<std::string> texts;
  std::uint64_t consumed = 0;  // bytes of the input files, from the beginning
  std::int64_t empty = 0;
};

// All the inputs, one after the other, in batches.
class Inputs {
 public:
  Inputs(const std::vector<std::string>& paths, const DocumentOptions& options, std::size_t batch_bytes)
      : paths_(paths), options_(options), batch_bytes_(batch_bytes) {}

  // Without texts at the end.
  DocumentBatch next() {
    DocumentBatch batch;
    std::size_t bytes = 0;
    std::string document;
    while (bytes < batch_bytes_ && batch.texts.size() < kMostDocuments && (reader_ || at_ < paths_.size())) {
      if (!reader_) reader_ = std::make_unique<DocumentReader>(paths_[at_++], options_);
      if (reader_->next(document)) {
        bytes += document.size();
        batch.texts.push_back(std::move(document));
      } else {
        finished_ += reader_->consumed();
        empty_ += reader_->empty();
        reader_.reset();
      }
    }
    batch.consumed = finished_ + (reader_ ? reader_->consumed() : 0);
    batch.empty = empty_ + (reader_ ? reader_->empty() : 0);
    return batch;
  }

 private:
  static constexpr std::size_t kMostDocuments = 65536;

  const std::vector<std::string>& paths_;
  const DocumentOptions& options_;
  std::size_t batch_bytes_;
  std::size_t at_ = 0;
  std::unique_ptr<DocumentReader> reader_;
  std::uint64_t finished_ = 0;
  std::int64_t empty_ = 0;
};

// What to put around every document.
struct Around {
  std::vector<std::int32_t> before, after;
};

Around around(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  Around result;
  if (options.append_eos && (tokenizer.eos() || options.eos_given->count() > 0)) {
    require(tokenizer.eos().has_value(), "--append-eos: the tokenizer {} has no token that ends a text",
            tokenizer.name());
    result.after.push_back(*tokenizer.eos());
  }
  if (options.prepend_bos) {
    require(tokenizer.bos().has_value(), "--prepend-bos: the tokenizer {} has no token that starts a text",
            tokenizer.name());
    result.before.push_back(*tokenizer.bos());
  }
  return result;
}

// The ids of each text, in their order, whichever thread makes them.
std::vector<std::vector<std::int32_t>> encode_all(const Tokenizer& tokenizer, const Around& around,
                                                  const std::vector<std::string>& texts, int threads) {
  std::vector<std::vector<std::int32_t>> ids(texts.size());
  std::vector<std::exception_ptr> failed(texts.size());
  parallel_for(static_cast<std::int64_t>(texts.size()), threads, [&](std::int64_t index, int /*worker*/) {
    const auto at = static_cast<std::size_t>(index);
    try {
      ids[at] = tokenizer.encode(texts[at]);
      if (ids[at].empty()) return;
      ids[at].insert(ids[at].begin(), around.before.begin(), around.before.end());
      ids[at].insert(ids[at].end(), around.after.begin(), around.after.end());
    } catch (...) {
      failed[at] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : failed) {
    if (error) std::rethrow_exception(error);
  }
  return ids;
}

std::uint64_t total_size(const std::vector<std::string>& paths) {
  std::uint64_t total = 0;
  for (const std::string& path : paths) {
    // Better to hear now than after hours that the last one is not there, or is no file.
    static_cast<void>(open_regular_file(path));
    total += std::filesystem::file_size(path);
  }
  return total;
}

void run(TokenizeOptions options) {
  options.documents.format = kFormats.at(options.format);
  options.documents.bytes = options.bytes ? TextBytes::any : TextBytes::utf8;
  options.documents.separator = unescaped(options.documents.separator);
  require(options.documents.separator.empty() || !options.documents.paragraphs,
          "--document-separator and --paragraphs exclude each other");
  const auto tokenizer = load_tokenizer(options.tokenizer);
  const Around extra = around(options, *tokenizer);
  const std::uint64_t total = total_size(options.inputs);
  if (!options.bytes) {
    for (const std::string& input : options.inputs) check_starts_as_text(input);
  }
  ShardWriter writer({options.out, tokenizer->name(), tokenizer->vocab_size(), tokenizer->fingerprint(),
                      options.shard_tokens, options.force});
  save_tokenizer(*tokenizer, options.out);

  const int threads = thread_count(options.threads);
  const auto start = std::chrono::steady_clock::now();
  Inputs inputs(options.inputs, options.documents, std::size_t{4} << 20U);
  TokenizeProgress progress(total);
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
  std::int64_t not_utf8 = 0;
  std::int64_t without_tokens = 0;
  DocumentBatch batch = inputs.next();
  while (!batch.texts.empty()) {
    // The next one is read while this one is encoded.
    std::future<DocumentBatch> ahead = std::async(std::launch::async, [&] { return inputs.next(); });
    for (const auto& ids : encode_all(*tokenizer, extra, batch.texts, threads)) {
      if (ids.empty()) {
        ++without_tokens;
      } else {
        writer.add(ids);
      }
      tokens += static_cast<std::int64_t>(ids.size());
    }
    for (const std::string& text : batch.texts) {
      bytes += static_cast<std::int64_t>(text.size());
      if (first_invalid_utf8(text)) ++not_utf8;
    }
    progress.show(batch.consumed, tokens);
    batch = ahead.get();
  }
  const ShardWriter::Totals totals = writer.finish();
  progress.clear();

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("tokenizer  {}, {} ids\n", tokenizer->name(), tokenizer->vocab_size());
  fmt::print("documents  {}", totals.documents);
  if (batch.empty + without_tokens > 0) fmt::print(", and {} without text, left out", batch.empty + without_tokens);
  fmt::print("\ntokens     {}, {:.2f} bytes of text each\n", totals.tokens,
             static_cast<double>(bytes) / static_cast<double>(totals.tokens));
  if (not_utf8 > 0) {
    fmt::print("encoding   {} documents have bytes that are not UTF-8{}\n", not_utf8,
               tokenizer->name() == "bytes" ? "; kept as they are" : "; they became U+FFFD");
  }
  fmt::print("time       {:.1f} s, {:.1f} MB of text a second, {} thread(s)\n", seconds,
             static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9), threads);
  fmt::print("wrote      {}: {} shard(s), {}, and the tokenizer\n", options.out, totals.shards, kShardIndexName);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  CLI::App* tokenize = app.add_subcommand("tokenize", "Turn texts into token shards to train on");
  tokenize->footer(kTokenizeHelp);
  auto options = std::make_shared<TokenizeOptions>();
  TokenizeOptions& o = *options;
  tokenize
      ->add_option("--tokenizer", o.tokenizer,
                   "\"bytes\", a SentencePiece .model, a tokenizer.json, a vocab.json with merges.txt beside it, or a\n"
                   "folder with one of these")
      ->required()
      ->option_text("SPEC");
  tokenize->add_option("--out", o.out, "The folder to write; made if it is not there")->required()->option_text("DIR");
  tokenize->add_option("inputs", o.inputs, "Files of text or JSON lines")->required()->option_text("INPUT...");
  std::vector<std::string> formats;
  for (const auto& [name, unused] : kFormats) formats.push_back(name);
  tokenize->add_option("--format", o.format, "auto (default): by the file's name; text; jsonl")
      ->check(CLI::IsMember(formats))
      ->option_text("FORMAT");
  tokenize->add_option("--text-key", o.documents.text_key, "The member of a JSON line that holds the text (text)")
      ->option_text("KEY");
  tokenize->add_flag("--bytes", o.bytes, "Take files that are not UTF-8 text as they are");
  tokenize->add_flag("--paragraphs", o.documents.paragraphs,
                     "Text: a document ends at a blank line; else a file is one document");
  tokenize
      ->add_option("--document-separator", o.documents.separator,
                   "Text: a document ends at this text, in which \\n, \\t, \\r, \\0 and \\\\ may stand")
      ->option_text("TEXT");
  o.eos_given = tokenize->add_flag("--append-eos,!--no-append-eos", o.append_eos,
                                   "Whether to end every document with the tokenizer's end of text, if it has one\n"
                                   "(default: yes)");
  tokenize->add_flag("--prepend-bos", o.prepend_bos, "Start every document with the tokenizer's start of text");
  tokenize->add_option("--shard-tokens", o.shard_tokens, "A shard is full when it has as many tokens (100000000)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 34U))
      ->option_text("N");
  tokenize->add_option("--threads", o.threads, "0 (default): all. The result does not depend on it")
      ->check(CLI::Range(0, 4096))
      ->option_text("N");
  tokenize->add_flag("--force", o.force, "Replace the shards that DIR holds");
  tokenize->callback([options] { run(*options); });
}

}  // namespace qdelta
