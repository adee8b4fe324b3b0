// `qdelta op` against the golden cases: every file, every form.
#include "cli_testing.h"

namespace qdelta::testing {
namespace {

const std::vector<std::string> kOutputs = {"o", "ht"};
const std::vector<std::string> kGradients = {"dq", "dk", "dv", "dg", "dbeta", "dlambda", "dh0"};

// The largest difference relative to the largest value, so that no single element can hide in a norm.
double largest_error(const std::vector<double>& got, const std::vector<double>& expected) {
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error = std::max(error, std::abs(got[i] - expected[i]));
    size = std::max(size, std::abs(expected[i]));
  }
  return size == 0 ? error : error / size;
}

void expect_close(const SafetensorsFile& result, const SafetensorsFile& expected, const std::string& name, DType dtype,
                  double tolerance) {
  ASSERT_TRUE(result.contains(name)) << name;
  EXPECT_EQ(result.view(name).dtype, dtype) << name;
  EXPECT_EQ(result.view(name).shape, expected.view(name).shape) << name;
  const std::vector<double> got = to_doubles(result.view(name));
  const std::vector<double> want = to_doubles(expected.view(name));
  EXPECT_LT(relative_error(got, want), tolerance) << name;
  EXPECT_LT(largest_error(got, want), tolerance) << name;
}

class OpGolden : public ::testing::TestWithParam<const char*> {
 protected:
  // Runs the case and opens what was written.
  [[nodiscard]] SafetensorsFile run(const std::string& input, const std::string& form, const std::string& dtype) const {
    const std::string path = folder_.file(form + "-" + dtype);
    const RunResult result =
        run_qdelta({"op", "--in", input, "--out", path, "--form", form, "--dtype", dtype, "--backward"});
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.err, "");
    return SafetensorsFile::open(path);
  }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Forms, OpGolden, ::testing::Values("chunk", "recurrent", "oracle"),
                         [](const ::testing::TestParamInfo<const char*>& test) { return std::string(test.param); });

TEST_P(OpGolden, Float32) {
  for (const std::string& path : golden_paths()) {
    SCOPED_TRACE(path);
    const SafetensorsFile expected = SafetensorsFile::open(path);
    const SafetensorsFile result = run(path, GetParam(), "f32");
    for (const std::string& output : kOutputs) expect_close(result, expected, output, DType::f32, 1e-5);
    for (const std::string& gradient : kGradients) {
      EXPECT_EQ(result.contains(gradient), expected.contains(gradient)) << gradient;
      if (expected.contains(gradient)) expect_close(result, expected, gradient, DType::f32, 5e-5);
    }
    EXPECT_EQ(result.names().size(), kOutputs.size() + kGradients.size() - (expected.contains("dh0") ? 0 : 1));
    EXPECT_EQ(result.metadata().at("rule"), expected.metadata().at("rule"));
    EXPECT_EQ(result.metadata().at("qk_l2norm"), expected.metadata().at("qk_l2norm"));
    EXPECT_FLOAT_EQ(std::stof(result.metadata().at("scale")), std::stof(expected.metadata().at("scale")));
    EXPECT_EQ(result.metadata().at("form"), GetParam());
  }
}

// Against the oracle on inputs that bfloat16 holds exactly, so that only the arithmetic and the output are rounded.
TEST_P(OpGolden, BFloat16) {
  const bool chunks = std::string_view(GetParam()) == "chunk";
  for (const std::string& path : golden_paths()) {
    SCOPED_TRACE(path);
    EditableCase rounded = EditableCase::read(path);
    for (const char* input : {"q", "k", "v", "do"}) {
      rounded.convert(input, DType::bf16);
      rounded.convert(input, DType::f32);
    }
    const std::string input = folder_.file("case.safetensors");
    rounded.write(input);
    const SafetensorsFile expected = run(input, "oracle", "f32");
    const SafetensorsFile result = run(input, GetParam(), "bf16");
    EXPECT_EQ(result.metadata().at("dtype"), "bf16");
    // The chunk form may round the operands of its products to bfloat16, and without the norm the recurrence amplifies
    // these errors; the other forms only store in it.
    const double chunk_tolerance = expected.metadata().at("qk_l2norm") == "true" ? 0.02 : 0.08;
    for (const char* narrow : {"o", "dq", "dk", "dv"}) {
      expect_close(result, expected, narrow, DType::bf16, chunks ? chunk_tolerance : 0.004);
    }
    for (const char* wide : {"ht", "dg", "dbeta", "dlambda"}) {
      expect_close(result, expected, wide, DType::f32, chunks ? chunk_tolerance : 5e-5);
    }
  }
}

}  // namespace
}  // namespace qdelta::testing
