// The checksum of a file: what it is, that it sees every wrong bit, and that files without one are read as ever.
#include "io/safetensors_checksum.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
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

Tensor counting(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.bytes(); ++i) tensor.data()[i] = static_cast<std::byte>(i % 251);
  return tensor;
}

class Checksum : public ::testing::Test {
 protected:
  void write() const {
    write_safetensors(path_, std::vector<NamedTensor>{{"b", b_.view()}, {"a", a_.view()}, {"none", none_.view()}},
                      {{"rule", "q_delta"}, {"scale", "0.5"}});
  }
  [[nodiscard]] std::string stored() const {
    const std::string file = read_file(path_);
    return file.substr(file.find("xxh3:"), 21);
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("file");
  Tensor a_ = counting(DType::f32, {2, 3});
  Tensor b_ = counting(DType::bf16, {5});
  Tensor none_ = counting(DType::f32, {0, 4});
};

TEST_F(Checksum, EveryWrongBitIsSeen) {
  write();
  EXPECT_TRUE(SafetensorsFile::open(path_).verify());
  const std::string good = read_file(path_);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const FileInMemory file(bad);
    try {
      const bool sum = SafetensorsFile::parse(file.bytes(), "file").verify();
      ADD_FAILURE() << "bit " << bit % 8 << " of byte " << bit / 8 << " was not seen, checksum " << sum;
    } catch (const Error& error) {
      EXPECT_NE(error.status(), Status::io) << error.what();
    }
  }
}

TEST_F(Checksum, IsThatOfTheDescription) {
  write();
  // Computed in Python from the words in io/safetensors_checksum.h.
  EXPECT_EQ(stored(), "xxh3:bfd6f90bb29c4c66");
  // More than one piece, and a last one that is shorter.
  const Tensor large = counting(DType::u8, {(9 << 20) + 17});
  const NamedTensor named{"large", large.view()};
  for (const int threads : {1, 2, 5}) {
    EXPECT_EQ(safetensors_checksum({&named, 1}, {}, threads), "xxh3:3cee411c2219f14b") << threads << " threads";
  }
}

TEST_F(Checksum, DoesNotDependOnTheOrder) {
  write();
  const std::string before = stored();
  write_safetensors(path_, std::vector<NamedTensor>{{"none", none_.view()}, {"a", a_.view()}, {"b", b_.view()}},
                    {{"scale", "0.5"}, {"rule", "q_delta"}});
  EXPECT_EQ(stored(), before);
}

TEST_F(Checksum, IsNotPartOfTheMetadata) {
  write();
  const SafetensorsFile file = SafetensorsFile::open(path_);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"rule", "q_delta"}, {"scale", "0.5"}}));
  expect_error(Status::invalid_argument, {kChecksumKey}, [&] {
    write_safetensors(path_, std::vector<NamedTensor>{{"a", a_.view()}}, {{kChecksumKey, "mine"}});
    return 0;
  });
}

TEST_F(Checksum, FilesOfOthersHaveNone) {
  const FileInMemory file(file_of(header_of_bytes({{"a", 0, 4}}), 4));
  EXPECT_FALSE(SafetensorsFile::parse(file.bytes(), "other").verify());
}

TEST_F(Checksum, WhatIsSaidOfDamage) {
  write();
  std::string bad = read_file(path_);
  bad.back() = static_cast<char>(bad.back() ^ 1);
  write_file(path_, bad);
  expect_error(Status::corrupt, {path_, "damaged", stored()}, [&] { return SafetensorsFile::open(path_).verify(); });
}

}  // namespace
}  // namespace qdelta
