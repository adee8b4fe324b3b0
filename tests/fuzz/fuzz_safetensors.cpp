// Feeds bytes to the safetensors parser: as a file, and as the header of one.
//
// A file must begin with the length of its header, and a mutation of the header nearly always breaks that. So the input
// is also framed: its first byte says how many bytes of data there are, the rest is the header, and the length is put
// in front. Whatever the parser accepts must be safe to load from, element by element.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "expect.h"
#include "io/safetensors.h"

namespace {

volatile std::uint64_t sink;  // keeps the loads below from being optimised away

using qdelta::fuzz::expect;

template <class T>
void load_all(const qdelta::ConstTensorView& view) {
  // Typed loads, so that the sanitizers see a misaligned or foreign address.
  const T* elements = reinterpret_cast<const T*>(view.data);
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < view.shape.elements(); ++i) sum += elements[i];
  sink = sum;
}

void touch(const qdelta::ConstTensorView& view) {
  expect(view.data != nullptr, "a tensor without an address");
  expect(view.shape.elements() == 0 || view.contiguous(), "a tensor that is not row-major");
  switch (qdelta::size_of(view.dtype)) {
    case 1:
      return load_all<std::uint8_t>(view);
    case 2:
      return load_all<std::uint16_t>(view);
    case 4:
      return load_all<std::uint32_t>(view);
    case 8:
      return load_all<std::uint64_t>(view);
    default:
      expect(false, "an element of a strange size");
  }
}

void parse(std::span<const std::byte> bytes) {
  qdelta::fuzz::may_refuse([&] {
    const auto file = qdelta::SafetensorsFile::parse(bytes, "fuzz");
    std::uint64_t covered = 0;
    for (const std::string& name : file.names()) {
      expect(file.contains(name), "a name that is not there");
      const qdelta::ConstTensorView view = file.view(name);
      touch(view);
      covered += static_cast<std::uint64_t>(view.shape.elements()) * qdelta::size_of(view.dtype);
    }
    expect(covered < bytes.size(), "more data than the file holds");
    for (const auto& [key, value] : file.metadata()) sink = key.size() + value.size();
    try {
      static_cast<void>(file.view("a name \n that is hardly there"));
    } catch (const qdelta::Error& error) {
      expect(error.status() == qdelta::Status::invalid_argument, error.what());
    }
  });
}

void parse_framed(std::span<const std::uint8_t> input) {
  const std::size_t data_bytes = input[0];
  const std::span<const std::uint8_t> header = input.subspan(1);
  const std::uint64_t length = (header.size() + 7) / 8 * 8;
  std::vector<std::byte> file(8 + length + data_bytes, std::byte{' '});
  std::memcpy(file.data(), &length, sizeof(length));
  if (!header.empty()) std::memcpy(file.data() + 8, header.data(), header.size());
  parse(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parse(std::as_bytes(std::span(data, size)));
  if (size > 0) parse_framed({data, size});
  return 0;
}
