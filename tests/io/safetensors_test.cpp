#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "io_testing.h"

namespace qdelta {
namespace {

using testing::expect_error;
using testing::file_of;
using testing::FileInMemory;
using testing::header_of_bytes;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

constexpr DType kAllTypes[] = {DType::boolean,     DType::f4,      DType::f6_e2m3, DType::f6_e3m2, DType::u8,
                               DType::i8,          DType::f8_e5m2, DType::f8_e4m3, DType::f8_e8m0, DType::f8_e4m3fnuz,
                               DType::f8_e5m2fnuz, DType::i16,     DType::u16,     DType::f16,     DType::bf16,
                               DType::i32,         DType::u32,     DType::f32,     DType::c64,     DType::f64,
                               DType::i64,         DType::u64};

// A tensor of bytes that differ from one tensor and one position to the next.
Tensor patterned(DType dtype, const Shape& shape, std::size_t seed) {
  Tensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.bytes(); ++i) tensor.data()[i] = static_cast<std::byte>(seed * 37 + i * 11 + 1);
  return tensor;
}

void expect_same(const ConstTensorView& view, const Tensor& tensor) {
  EXPECT_EQ(view.dtype, tensor.dtype());
  EXPECT_EQ(view.shape, tensor.shape());
  EXPECT_TRUE(view.contiguous());
  ASSERT_NE(view.data, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype), 0u);
  EXPECT_TRUE(std::equal(tensor.data(), tensor.data() + tensor.bytes(), view.data));
}

// Writes, reads back, compares; returns the names in the order of the file.
std::vector<std::string> round_trip(const std::vector<std::pair<std::string, Tensor>>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  const TemporaryFolder folder;
  const std::string path = folder.file("round_trip.safetensors");
  std::vector<NamedTensor> named;
  named.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) named.push_back({name, tensor.view()});
  write_safetensors(path, named, metadata);
  EXPECT_EQ(folder.count(), 1);

  std::uint64_t header = 0;
  const std::string bytes = read_file(path);
  std::memcpy(&header, bytes.data(), sizeof(header));
  EXPECT_EQ((header + 8) % 64, 0u);

  SafetensorsFile opened = SafetensorsFile::open(path);
  const SafetensorsFile file = std::move(opened);  // views survive a move
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(file.contains(name));
    SCOPED_TRACE(name);
    expect_same(file.view(name), tensor);
  }
  return file.names();
}

TEST(Safetensors, RoundTripOfEveryType) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const DType type : kAllTypes) {
    const std::string name(name_of(type));
    // Elements of less than a byte must fill whole ones.
    tensors.emplace_back(name, patterned(type, bits_of(type) < 8 ? Shape{3, 4} : Shape{3, 5}, tensors.size()));
    if (bits_of(type) >= 8) tensors.emplace_back(name + ".scalar", patterned(type, {}, tensors.size()));
    tensors.emplace_back(name + ".empty", patterned(type, {2, 0, 3}, tensors.size()));
    tensors.emplace_back(name + ".rank6", patterned(type, {1, 2, 1, 3, 1, 2}, tensors.size()));
  }
  round_trip(tensors, {{"format", "pt"}, {"text", "line\nbreak \"quotes\" \\ \xc3\xa9 \x01"}, {"", ""}});
}

TEST(Safetensors, RoundTripOfNothing) {
  round_trip({}, {});
  round_trip({}, {{"only", "metadata"}});
}

TEST(Safetensors, RoundTripOfOddNames) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string name : {"", "a\"b\\c", "\xe6\xbc\xa2\xf0\x9f\x98\x80", "line\n", "dtype", "shape"}) {
    tensors.emplace_back(name, patterned(DType::f32, {2}, tensors.size()));
  }
  tensors.emplace_back(std::string("nul\0inside", 10), patterned(DType::f32, {2}, 9));
  round_trip(tensors, {});
}

TEST(Safetensors, KeepsTheOrderGivenWhenItIsAligned) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  tensors.emplace_back("z", patterned(DType::u8, {8}, 0));
  tensors.emplace_back("y", patterned(DType::f64, {1}, 1));
  tensors.emplace_back("x", patterned(DType::bf16, {2}, 2));
  EXPECT_EQ(round_trip(tensors, {}), (std::vector<std::string>{"z", "y", "x"}));
}

TEST(Safetensors, SortsBySizeThenNameWhenTheOrderGivenIsNot) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  tensors.emplace_back("b", patterned(DType::u8, {3}, 0));
  tensors.emplace_back("d", patterned(DType::f32, {1}, 1));
  tensors.emplace_back("c", patterned(DType::i32, {1}, 2));
  tensors.emplace_back("a", patterned(DType::i8, {1}, 3));
  tensors.emplace_back("e", patterned(DType::f64, {1}, 4));
  EXPECT_EQ(round_trip(tensors, {}), (std::vector<std::string>{"e", "c", "d", "a", "b"}));
}

TEST(Safetensors, WritesStridedViewsRowMajor) {
  const TemporaryFolder folder;
  Tensor matrix(DType::i32, {2, 3});
  for (std::size_t i = 0; i < 6; ++i) matrix.as<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  ConstTensorView transposed(matrix.data(), DType::i32, {3, 2});
  transposed.stride = {1, 3};
  write_safetensors(folder.file("t"), std::vector<NamedTensor>{{"t", transposed}});
  const SafetensorsFile file = SafetensorsFile::open(folder.file("t"));
  const auto* values = reinterpret_cast<const std::int32_t*>(file.view("t").data);
  EXPECT_EQ((std::vector<std::int32_t>(values, values + 6)), (std::vector<std::int32_t>{0, 3, 1, 4, 2, 5}));
}

TEST(Safetensors, RefusesToWriteWhatCouldNotBeRead) {
  const TemporaryFolder folder;
  const Tensor tensor(DType::f32, {2});
  const auto refuse = [&](const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata,
                          const std::string& piece) {
    expect_error(Status::invalid_argument, {folder.file("t"), piece},
                 [&] { write_safetensors(folder.file("t"), tensors, metadata); });
  };
  refuse({{"a", tensor.view()}, {"a", tensor.view()}}, {}, "two tensors are called \"a\"");
  refuse({{"__metadata__", tensor.view()}}, {}, "must not be called \"__metadata__\"");
  refuse({{"a\xff", tensor.view()}}, {}, R"(name "a\xff" is not valid UTF-8)");
  refuse({{"a\xed\xa0\x80", tensor.view()}}, {}, "not valid UTF-8");  // a surrogate
  refuse({{"a\xc0\x80", tensor.view()}}, {}, "not valid UTF-8");      // an overlong NUL
  refuse({{"a", tensor.view()}}, {{"key\xff", "v"}}, R"(metadata key "key\xff" is not valid UTF-8)");
  refuse({{"a", tensor.view()}}, {{"key", "v\xff"}}, "metadata value of \"key\"");
  refuse({{"a", ConstTensorView(nullptr, DType::f32, {2})}}, {}, "tensor \"a\" has no data");
  ConstTensorView impossible = tensor.view();
  impossible.shape = {-1, 2};
  refuse({{"a", impossible}}, {}, "impossible shape [-1, 2]");
  impossible.shape = {std::numeric_limits<std::int64_t>::max(), 2};
  refuse({{"a", impossible}}, {}, "impossible shape");
  EXPECT_EQ(folder.count(), 0);
}

TEST(Safetensors, FailedWriteKeepsTheOldFile) {
  const TemporaryFolder folder;
  const Tensor tensor(DType::f32, {2});
  write_file(folder.file("t"), "old");
  expect_error(Status::invalid_argument, {"two tensors"}, [&] {
    write_safetensors(folder.file("t"), std::vector<NamedTensor>{{"a", tensor.view()}, {"a", tensor.view()}});
  });
  EXPECT_EQ(read_file(folder.file("t")), "old");
  expect_error(Status::io, {folder.file("no/t"), "No such file"}, [&] {
    write_safetensors(folder.file("no/t"), std::vector<NamedTensor>{{"a", tensor.view()}});
  });
  EXPECT_EQ(folder.count(), 1);
}

// Written by the reference implementation.
TEST(Safetensors, ReadsTheGoldenFiles) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(QDELTA_GOLDEN_DIR "/op")) {
    if (entry.path().extension() != ".safetensors") continue;
    SCOPED_TRACE(entry.path());
    const SafetensorsFile file = SafetensorsFile::open(entry.path());
    EXPECT_EQ(file.metadata().count("rule"), 1u);
    EXPECT_EQ(file.view("q").shape.rank, 4);
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(Safetensors, OpensOnlyFiles) {
  const TemporaryFolder folder;
  expect_error(Status::io, {folder.file("x"), "No such file"}, [&] { return SafetensorsFile::open(folder.file("x")); });
  expect_error(Status::io, {folder.path(), "Is a directory"}, [&] { return SafetensorsFile::open(folder.path()); });
  write_file(folder.file("empty"), "");
  expect_error(Status::corrupt, {folder.file("empty"), "0 bytes"},
               [&] { return SafetensorsFile::open(folder.file("empty")); });
}

TEST(Safetensors, BytesInMemoryMustBeAligned) {
  const FileInMemory file(fmt::format(" {}", file_of("{}", 0)));
  expect_error(Status::invalid_argument, {"label", "multiple of 8"},
               [&] { return SafetensorsFile::parse(file.bytes().subspan(1), "label"); });
}

TEST(Safetensors, MissingTensorNamesFileAndNeighbours) {
  const FileInMemory file(file_of(
      header_of_bytes({{"layers.0.q_proj.weight", 0, 4}, {"layers.0.k_proj.weight", 4, 6}, {"norm", 6, 8}}), 8));
  const SafetensorsFile opened = SafetensorsFile::parse(file.bytes(), "label");
  EXPECT_FALSE(opened.contains("layers.0.q_prj.weight"));
  expect_error(Status::invalid_argument,
               {"label: no tensor \"layers.0.q_prj.weight\" among the 3 in the file",
                R"(did you mean "layers.0.q_proj.weight" or "layers.0.k_proj.weight"?)"},
               [&] { return opened.view("layers.0.q_prj.weight"); });
  try {
    static_cast<void>(opened.view("something else entirely"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("did you mean"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace qdelta
