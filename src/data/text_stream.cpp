#include "data/text_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

constexpr std::size_t kSniffed = 4096;  // bytes from the start

// What a file is by its first bytes, and what to do about it.
struct Kind {
  std::string_view name;
  std::string_view advice;
};
struct Magic {
  std::string_view bytes;
  std::size_t at;
  Kind kind;
};

constexpr std::string_view kUncompress = "uncompress it first";
constexpr std::string_view kUncompressOnce = "it was compressed twice: uncompress it once";
constexpr std::string_view kExtract = "extract the files in it and give those";
constexpr std::string_view kExport = "export its text as JSON lines, one {\"text\": ...} each, and give those";
constexpr std::string_view kFrame =
    "write it as JSON lines, as Python's pandas does with to_json(\"out.jsonl\", orient=\"records\", lines=True) after "
    "read_parquet, read_feather or read_orc";
constexpr std::string_view kNoText = "there is no text in it to train on";
constexpr std::string_view kUtf16 = "convert it: iconv -f UTF-16 -t UTF-8 in > out";

using namespace std::string_view_literals;
// Two characters that C++ would take into the escape before stand in a string of their own.
constexpr Magic kMagics[] = {
    {"PAR1"sv, 0, {"a Parquet file", kFrame}},
    {"ARROW1"sv, 0, {"an Arrow (Feather) file", kFrame}},
    {"\xff\xff\xff\xff"sv, 0, {"an Arrow stream", kExport}},
    {"ORC"sv, 0, {"an ORC file", kFrame}},
    {"Obj\x01"sv, 0, {"an Avro file", kExport}},
    {"\x1f\x8b"sv, 0, {"gzip", kUncompressOnce}},
    {"\xfd"
     "7zXZ\0"sv,
     0,
     {"xz", kUncompressOnce}},
    {"\x28\xb5\x2f\xfd"sv, 0, {"zstd", kUncompressOnce}},
    {"BZh"sv, 0, {"bzip2", kUncompress}},
    {"\x04\x22\x4d\x18"sv, 0, {"lz4", kUncompress}},
    {"7z\xbc\xaf\x27\x1c"sv, 0, {"a 7z archive", kExtract}},
    {"PK\x03\x04"sv, 0, {"a zip archive (or an office document, an e-book, a NumPy .npz, which are some)", kExtract}},
    {"Rar!\x1a\x07"sv, 0, {"a rar archive", kExtract}},
    {"ustar"sv, 257, {"a tar archive", kExtract}},
    {"%PDF-"sv, 0, {"a PDF", "take the text out of it: pdftotext in.pdf out.txt"}},
    {"\xd0\xcf\x11\xe0"sv, 0, {"an office document", "save it as plain text in UTF-8"}},
    {"\x7f"
     "ELF"sv,
     0,
     {"a program (ELF)", kNoText}},
    {"MZ"sv, 0, {"a program (Windows)", kNoText}},
    {"\x89PNG"sv, 0, {"an image (PNG)", kNoText}},
    {"\xff\xd8\xff"sv, 0, {"an image (JPEG)", kNoText}},
    {"GIF8"sv, 0, {"an image (GIF)", kNoText}},
    {"WEBP"sv, 8, {"an image (WebP)", kNoText}},
    {"II*\0"sv, 0, {"an image (TIFF)", kNoText}},
    {"MM\0*"sv, 0, {"an image (TIFF)", kNoText}},
    {"SQLite format 3\0"sv, 0, {"an SQLite database", kExport}},
    {"\x89HDF"sv, 0, {"an HDF5 file", kExport}},
    {"\x93NUMPY"sv, 0, {"a NumPy array", "give token ids as token shards, or their text"}},
    {"GGUF"sv, 0, {"a model (GGUF)", kNoText}},
    {"\0\0\0\0\0{\""sv, 3, {"a model (safetensors)", kNoText}},
    {"\xff\xfe"sv, 0, {"text in UTF-16", kUtf16}},
    {"\xfe\xff"sv, 0, {"text in UTF-16", kUtf16}},
};

// A character that text has no use for. A few words of text may start like a binary file; they lack these.
bool is_control(char c) { return (c >= 0 && c < '\t') || (c > '\r' && c < ' ' && c != '\x1b') || c == '\x7f'; }

// Nothing is known where the name is empty.
Kind kind_of(std::string_view start) {
  for (const Magic& magic : kMagics) {
    if (start.size() > magic.at && start.substr(magic.at).starts_with(magic.bytes)) return magic.kind;
  }
  const auto zeros = static_cast<std::size_t>(std::count(start.begin(), start.end(), '\0'));
  if (start.size() >= 8 && 4 * zeros >= start.size()) return {"text in UTF-16 or UTF-32, or no text at all", kUtf16};
  return {};
}

// Where the first bytes are that are not UTF-8, and whether they may only be cut off by the end.
struct Broken {
  std::size_t at;
  bool cut_off;
};
std::optional<Broken> first_broken(std::string_view text) {
  const auto at = first_invalid_utf8(text);
  if (!at) return std::nullopt;
  return Broken{*at, utf8::step(text.substr(*at)).kind == utf8::Step::Kind::incomplete};
}

class TextStream final : public ByteStream {
 public:
  TextStream(std::string path, std::unique_ptr<ByteStream> bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {}

  std::size_t read(std::span<char> out) override {
    const std::size_t got = bytes_->read(out);
    const std::string_view part(out.data(), got);
    if (at_ == 0 && got > 0) look_at_start(part.substr(0, kSniffed));
    check(part);
    at_ += got;
    return got;
  }
  [[nodiscard]] std::uint64_t consumed() const override { return bytes_->consumed(); }
  [[nodiscard]] bool compressed() const override { return bytes_->compressed(); }

 private:
  void look_at_start(std::string_view start) {
    kind_ = kind_of(start);
    const auto control = static_cast<std::size_t>(std::find_if(start.begin(), start.end(), is_control) - start.begin());
    if (kind_.name.empty() || control == start.size()) return;
    const std::size_t first = std::min(control, first_invalid_utf8(start).value_or(control));
    refuse(first, start[first]);
  }
  // What is left of the part before, a character that was cut, and this part; empty at the end.
  void check(std::string_view part) {
    std::size_t skipped = 0;
    while (!held_.empty()) {
      const utf8::Step next = utf8::step(held_);
      if (next.kind == utf8::Step::Kind::character) {
        held_.clear();
      } else if (next.kind == utf8::Step::Kind::invalid || skipped == part.size()) {
        if (next.kind == utf8::Step::Kind::incomplete && !part.empty()) return;  // still to be completed
        refuse(at_ + skipped - held_.size(), held_[0]);
      } else {
        held_ += part[skipped++];
      }
    }
    const auto broken = first_broken(part.substr(skipped));
    if (!broken) return;
    if (!broken->cut_off) refuse(at_ + skipped + broken->at, part[skipped + broken->at]);
    held_ = part.substr(skipped + broken->at);
  }
  [[noreturn]] void refuse(std::uint64_t at, char byte) const {
    const Kind kind = kind_.name.empty() ? Kind{"text in another encoding, or no text at all",
                                                "if it is text, convert it: iconv -f LATIN1 -t UTF-8 in > out"}
                                         : kind_;
    fail(Status::corrupt,
         "{}: not UTF-8 text: byte 0x{:02x} at offset {}{}. It looks like {}; {}. Or give --bytes to take its bytes as "
         "they are",
         path_, static_cast<unsigned char>(byte), at, compressed() ? " of what is compressed in it" : "", kind.name,
         kind.advice);
  }

  std::string path_;
  std::unique_ptr<ByteStream> bytes_;
  std::uint64_t at_ = 0;  // bytes before the part that is read
  std::string held_;      // the start of a character that was cut
  Kind kind_;
};

}  // namespace

std::unique_ptr<ByteStream> open_text_stream(const std::string& path, TextBytes bytes) {
  auto stream = open_byte_stream(path);
  if (bytes == TextBytes::any) return stream;
  return std::make_unique<TextStream>(path, std::move(stream));
}

void check_starts_as_text(const std::string& path) {
  std::vector<char> start(std::size_t{1} << 16U);
  static_cast<void>(open_text_stream(path, TextBytes::utf8)->read(start));
}

}  // namespace qdelta
