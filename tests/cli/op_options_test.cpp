// The options of `qdelta op`, and what the file says where they are silent.
#include "cli_testing.h"

namespace qdelta::testing {
namespace {

class OpOptions : public ::testing::Test {
 protected:
  // Runs the case with these options and returns what was written.
  EditableCase run(const EditableCase& input, const std::vector<std::string>& options) {
    input.write(folder_.file("in.safetensors"));
    std::vector<std::string> args = {"op", "--in", folder_.file("in.safetensors"), "--out",
                                     folder_.file("out.safetensors")};
    args.insert(args.end(), options.begin(), options.end());
    const RunResult result = run_qdelta(args);
    EXPECT_EQ(result.status, 0) << result.err;
    output_ = result.out;
    return result.status == 0 ? EditableCase::read(folder_.file("out.safetensors")) : EditableCase();
  }

  const EditableCase case_ = EditableCase::read(golden("q_delta_no_norm"));
  TemporaryFolder folder_;
  std::string output_;
};

double difference(const Tensor& got, const Tensor& expected) {
  return relative_error(got.view(), to_doubles(expected.view()));
}

TEST_F(OpOptions, TheForwardAloneWritesTheOutputsAlone) {
  const EditableCase result = run(case_, {});
  EXPECT_EQ(result.tensors.size(), 2U);
  EXPECT_LT(difference(result.tensors.at("o"), case_.tensors.at("o")), 1e-5);
  EXPECT_LT(difference(result.tensors.at("ht"), case_.tensors.at("ht")), 1e-5);
}

TEST_F(OpOptions, TheMetadataSaysHowItWasMade) {
  const std::map<std::string, std::string> by_default = run(case_, {}).metadata;
  const std::map<std::string, std::string> expected = {
      {"rule", "q_delta"}, {"scale", "0.25"}, {"qk_l2norm", "false"}, {"form", "recurrent"},
      {"chunk", "0"},      {"dtype", "f32"},  {"device", "cpu"},      {"qdelta_version", QDELTA_VERSION}};
  EXPECT_EQ(by_default, expected);
  EXPECT_EQ(run(case_, {"--chunk", "16"}).metadata.at("chunk"), "16");
  EXPECT_EQ(run(case_, {"--form", "recurrent"}).metadata.at("chunk"), "0");
}

// The form and chunk that ran, which need not be those of the backward.
TEST_F(OpOptions, TheMetadataSaysWhatRan) {
  using Words = std::vector<std::string>;
  const auto ran = [&](Words flags) {
    flags.emplace_back("--backward");
    const std::map<std::string, std::string> metadata = run(case_, flags).metadata;
    return Words{metadata.at("form"), metadata.at("chunk"), metadata.at("backward_form"),
                 metadata.at("backward_chunk")};
  };
  EXPECT_EQ(ran({}), (Words{"recurrent", "0", "chunk", "64"}));
  EXPECT_EQ(ran({"--form", "auto"}), ran({}));
  EXPECT_EQ(ran({"--chunk", "16"}), (Words{"chunk", "16", "chunk", "16"}));
  EXPECT_EQ(ran({"--form", "chunk"}), (Words{"chunk", "64", "chunk", "64"}));
  EXPECT_EQ(ran({"--form", "recurrent"}), (Words{"recurrent", "0", "recurrent", "0"}));
  EXPECT_EQ(ran({"--form", "oracle"}), (Words{"oracle", "0", "oracle", "0"}));
}

TEST_F(OpOptions, TheSummaryNamesWhatWasDone) {
  run(case_, {"--backward"});
  for (const char* piece : {"q_delta", "[2, 20, 2, 16]", "[2, 20, 2, 24]", "recurrent in blocks of 4", "chunk of 64",
                            "forward", "backward", "dh0", "out.safetensors"}) {
    EXPECT_NE(output_.find(piece), std::string::npos) << piece << " in " << output_;
  }
}

TEST_F(OpOptions, TheCommandLineWinsOverTheMetadata) {
  EditableCase other = case_;
  other.metadata = {{"rule", "delta"}, {"scale", "3"}, {"qk_l2norm", "true"}};
  const EditableCase result = run(other, {"--rule", "q_delta", "--scale", "0.25", "--no-qk-l2norm", "--backward"});
  EXPECT_LT(difference(result.tensors.at("o"), case_.tensors.at("o")), 1e-5);
  EXPECT_LT(difference(result.tensors.at("dk"), case_.tensors.at("dk")), 5e-5);
  EXPECT_EQ(result.metadata.at("rule"), "q_delta");
  EXPECT_EQ(result.metadata.at("qk_l2norm"), "false");
}

TEST_F(OpOptions, WithoutMetadataTheScaleIsOneOverTheRootOfTheWidthAndThereIsNoNorm) {
  EditableCase other = case_;
  other.metadata.clear();
  const EditableCase result = run(other, {"--rule", "q_delta"});  // K = 16
  EXPECT_LT(difference(result.tensors.at("o"), case_.tensors.at("o")), 1e-5);
  EXPECT_EQ(result.metadata.at("scale"), "0.25");
  EXPECT_EQ(result.metadata.at("qk_l2norm"), "false");
}

TEST_F(OpOptions, TheScaleMayBeNegativeAndTheNormTurnedOn) {
  const EditableCase normed = EditableCase::read(golden("q_delta_short"));
  EditableCase other = normed;
  other.metadata.erase("qk_l2norm");
  const EditableCase result = run(other, {"--scale", "-0.25", "--qk-l2norm"});
  Tensor mirrored = converted(normed.tensors.at("o").view(), DType::f64);
  for (double& value : mirrored.as<double>()) value = -value;
  EXPECT_LT(difference(result.tensors.at("o"), mirrored), 1e-5);
}

TEST_F(OpOptions, FlagsInMetadataMayBeWrittenAsPythonDoes) {
  EditableCase other = EditableCase::read(golden("q_delta_short"));
  other.metadata["qk_l2norm"] = "True";
  EXPECT_EQ(run(other, {}).metadata.at("qk_l2norm"), "true");
  other.metadata["qk_l2norm"] = "0";
  EXPECT_EQ(run(other, {}).metadata.at("qk_l2norm"), "false");
}

TEST_F(OpOptions, EveryChunkAndNumberOfThreads) {
  const EditableCase one = run(case_, {"--backward", "--threads", "1"});
  const EditableCase three = run(case_, {"--backward", "--threads", "3"});
  for (const auto& [name, tensor] : one.tensors) EXPECT_TRUE(same_bits(tensor, three.tensors.at(name))) << name;
  for (const char* chunk : {"0", "16", "32", "128"}) {
    const EditableCase result = run(case_, {"--backward", "--chunk", chunk});
    for (const auto& [name, tensor] : result.tensors) {
      EXPECT_LT(difference(tensor, case_.tensors.at(name)), 5e-5) << name << ", chunk " << chunk;
    }
  }
}

TEST_F(OpOptions, DoubleInputsAreConverted) {
  EditableCase other = case_;
  for (const char* name : {"q", "k", "v", "g", "beta", "lambda", "h0", "do", "dht"}) other.convert(name, DType::f64);
  const EditableCase from_f32 = run(case_, {"--backward"});
  const EditableCase from_f64 = run(other, {"--backward"});
  for (const auto& [name, tensor] : from_f32.tensors) EXPECT_TRUE(same_bits(tensor, from_f64.tensors.at(name))) << name;
}

TEST_F(OpOptions, BFloat16InputsAreWhatTheOptionMakesOfFloats) {
  EditableCase other = case_;
  for (const char* name : {"q", "k", "v", "do"}) other.convert(name, DType::bf16);
  const EditableCase by_option = run(case_, {"--backward", "--dtype", "bf16"});
  const EditableCase by_file = run(other, {"--backward", "--dtype", "bf16"});
  for (const auto& [name, tensor] : by_option.tensors) EXPECT_TRUE(same_bits(tensor, by_file.tensors.at(name))) << name;
  EXPECT_EQ(run(other, {}).tensors.at("o").dtype(), DType::f32);  // the file's type does not choose that of the result
}

TEST_F(OpOptions, WhatTheRuleDoesNotReadMayBeMissing) {
  EditableCase other = case_;
  other.tensors.erase("lambda");
  const EditableCase without = run(other, {"--rule", "gated_delta", "--backward"});
  const EditableCase with = run(case_, {"--rule", "gated_delta", "--backward"});
  for (const auto& [name, tensor] : with.tensors) EXPECT_TRUE(same_bits(tensor, without.tensors.at(name))) << name;
  other.tensors.erase("beta");
  const EditableCase linear = run(other, {"--rule", "linear", "--backward"});
  for (const double value : to_doubles(std::as_const(linear.tensors.at("dbeta")).view())) EXPECT_EQ(value, 0);
}

TEST_F(OpOptions, WithoutEntryStateOrStateGradientBothAreZero) {
  EditableCase zeros = case_;
  for (const char* name : {"h0", "dht"}) zeros.tensors[name] = Tensor(DType::f32, zeros.tensors[name].shape());
  EditableCase without = case_;
  for (const char* name : {"h0", "dht"}) without.tensors.erase(name);
  const EditableCase expected = run(zeros, {"--backward"});
  const EditableCase result = run(without, {"--backward"});
  EXPECT_TRUE(expected.tensors.contains("dh0"));
  EXPECT_FALSE(result.tensors.contains("dh0"));
  for (const auto& [name, tensor] : result.tensors) EXPECT_TRUE(same_bits(tensor, expected.tensors.at(name))) << name;
}

// Two sequences of a batch, packed behind each other.
TEST_F(OpOptions, PackedSequencesAreThoseOfABatch) {
  EditableCase packed = case_;
  for (auto& [name, tensor] : packed.tensors) {
    const Shape& shape = tensor.shape();
    if (name == "h0" || name == "dht" || name == "ht" || name == "dh0") continue;
    Shape one = shape;
    one.extent[0] = 1;
    one.extent[1] = shape[0] * shape[1];
    Tensor joined(tensor.dtype(), one);
    std::memcpy(joined.data(), tensor.data(), tensor.bytes());
    tensor = std::move(joined);
  }
  for (const DType dtype : {DType::i64, DType::i32}) {
    Tensor offsets(dtype, {3});
    for (int i = 0; i < 3; ++i) {
      if (dtype == DType::i64) offsets.as<std::int64_t>()[static_cast<std::size_t>(i)] = std::int64_t{20} * i;
      if (dtype == DType::i32) offsets.as<std::int32_t>()[static_cast<std::size_t>(i)] = 20 * i;
    }
    packed.tensors["cu_seqlens"] = std::move(offsets);
    const EditableCase result = run(packed, {"--backward"});
    for (const auto& [name, tensor] : result.tensors) {
      EXPECT_LT(difference(tensor, packed.tensors.at(name)), 5e-5) << name;
    }
  }
}

TEST_F(OpOptions, NoTokensGiveTheEntryStateAndNoOutput) {
  EditableCase empty;
  empty.metadata = case_.metadata;
  for (const char* name : {"q", "k", "v", "g", "beta", "lambda", "do"}) {
    Shape shape = case_.tensors.at(name).shape();
    shape.extent[1] = 0;
    empty.tensors[name] = Tensor(DType::f32, shape);
  }
  for (const char* name : {"h0", "dht"}) empty.tensors[name] = converted(case_.tensors.at(name).view(), DType::f32);
  for (const char* form : {"chunk", "recurrent", "oracle"}) {
    const EditableCase result = run(empty, {"--backward", "--form", form});
    EXPECT_EQ(result.tensors.at("o").elements(), 0) << form;
    EXPECT_TRUE(same_bits(result.tensors.at("ht"), empty.tensors.at("h0"))) << form;
    EXPECT_TRUE(same_bits(result.tensors.at("dh0"), empty.tensors.at("dht"))) << form;
  }
}

TEST_F(OpOptions, AnExistingResultIsReplaced) {
  write_file(folder_.file("out.safetensors"), "old");
  EXPECT_EQ(run(case_, {}).tensors.size(), 2U);
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"in.safetensors", "out.safetensors"}));
}

}  // namespace
}  // namespace qdelta::testing
