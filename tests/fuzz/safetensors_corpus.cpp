// What fuzz_safetensors.cpp starts from: small files, and their headers as it frames them itself.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "corpus.h"

namespace {

using namespace std::string_view_literals;

struct Seed {
  std::string_view header;
  std::size_t data_bytes;
};

constexpr Seed kSeeds[] = {
    {"{}", 0},
    {R"({"__metadata__":{"format":"pt","":"\u00e9"}})", 0},
    {R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24},
    {R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"BF16","shape":[3,0],"data_offsets":[8,8]}})",
     8},
    {R"({"__metadata__":{"a":"b"},"i":{"dtype":"I64","shape":[1,2],"data_offsets":[0,16]},)"
     R"("h":{"dtype":"F16","shape":[2],"data_offsets":[16,20]},"b":{"dtype":"BOOL","shape":[4],"data_offsets":[20,24]}})",
     24},
    {R"({"q":{"dtype":"F8_E4M3","shape":[1,1,1,1,1,3],"data_offsets":[0,3]},)"
     R"("u":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})",
     8},
};

constexpr std::string_view kWords[] = {R"("dtype")",
                                       R"("shape")",
                                       R"("data_offsets")",
                                       R"("__metadata__")",
                                       "F32",
                                       "BF16",
                                       "U64",
                                       "I8",
                                       "C64",
                                       "8",
                                       "24",
                                       "1.5",
                                       "1e9",
                                       R"({"a":{)",
                                       "\0"sv};

std::string as_file(const Seed& seed) {
  std::string file(8, '\0');
  std::string header(seed.header);
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(seed.data_bytes, '\1');
}

// What fuzz_safetensors.cpp calls framed.
std::string as_framed(const Seed& seed) {
  std::string input(1, static_cast<char>(seed.data_bytes));
  return input.append(seed.header);
}

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() {
  std::vector<std::string> all;
  for (const Seed& seed : kSeeds) {
    all.push_back(as_file(seed));
    all.push_back(as_framed(seed));
  }
  return all;
}
std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
