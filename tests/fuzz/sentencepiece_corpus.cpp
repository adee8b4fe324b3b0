// What fuzz_sentencepiece.cpp starts from.
#include "corpus.h"

namespace {

constexpr std::string_view kWords[] = {"<0x0A>", "\xe2\x96\x81", std::string_view("\0\0\0\0", 4)};

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

std::vector<std::string> qdelta::fuzz::seeds() { return {sentencepiece_model()}; }

std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
