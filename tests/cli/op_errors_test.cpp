// What `qdelta op` refuses: each time a message that names the culprit, and nothing written.
#include <functional>

#include "cli_testing.h"

namespace qdelta::testing {
namespace {

class OpErrors : public ::testing::Test {
 protected:
  [[nodiscard]] std::string in() const { return folder_.file("in.safetensors"); }
  [[nodiscard]] std::string out() const { return folder_.file("out.safetensors"); }

  // The case after `change`, run with these options, must fail and leave an existing result alone.
  void refuse(const std::function<void(EditableCase&)>& change, const std::vector<std::string>& options,
              const std::vector<std::string>& pieces, int status = 1) {
    EditableCase input = EditableCase::read(golden("q_delta_short"));
    change(input);
    input.write(in());
    refuse_file(options, pieces, status);
  }
  void refuse_file(const std::vector<std::string>& options, const std::vector<std::string>& pieces, int status = 1) {
    std::vector<std::string> args = {"op", "--in", in(), "--out", out()};
    args.insert(args.end(), options.begin(), options.end());
    write_file(out(), "precious");
    expect_failure(run_qdelta(args), status, pieces);
    EXPECT_EQ(read_file(out()), "precious");
    std::filesystem::remove(out());
    expect_failure(run_qdelta(args), status, pieces);
    EXPECT_EQ(folder_.names(), std::vector<std::string>{"in.safetensors"});
  }

  TemporaryFolder folder_;
};

void nothing(EditableCase& /*unchanged*/) {}

TEST_F(OpErrors, MissingTensors) {
  for (const char* name : {"q", "k", "v", "g"}) {
    refuse([&](EditableCase& c) { c.tensors.erase(name); }, {}, {in(), "\"" + std::string(name) + "\""});
  }
  refuse([](EditableCase& c) { c.tensors.erase("lambda"); }, {}, {in(), "q_delta", "lambda"});
  refuse([](EditableCase& c) { c.tensors.erase("beta"); }, {"--rule", "delta"}, {in(), "delta", "beta"});
  refuse([](EditableCase& c) { c.tensors.erase("do"); }, {"--backward"}, {in(), "--backward", "\"do\""});
}

TEST_F(OpErrors, WrongShapes) {
  // The golden case has B = 3, T = 1, H = HV = 2, K = V = 16.
  const std::vector<std::pair<std::string, Shape>> wrong = {
      {"q", {3, 1, 2}},       {"q", {3, 1, 2, 0}},   {"k", {3, 1, 2, 8}},   {"v", {3, 1, 3, 16}},
      {"v", {3, 2, 2, 16}},   {"g", {3, 1, 2, 1}},   {"beta", {3, 1, 1}},   {"lambda", {1, 3, 2}},
      {"h0", {1, 2, 16, 16}}, {"do", {3, 1, 2, 15}}, {"dht", {3, 2, 16, 8}}};
  for (const auto& [name, shape] : wrong) {
    SCOPED_TRACE(name + " " + shape.text());
    refuse([&, n = name, s = shape](EditableCase& c) { c.tensors[n] = Tensor(DType::f32, s); }, {"--backward"},
           {in(), name == "q" && shape[3] == 0 && shape.rank == 4 ? "width 0" : name});
  }
}

TEST_F(OpErrors, WrongTypes) {
  refuse([](EditableCase& c) { c.tensors["k"] = Tensor(DType::i64, c.tensors["k"].shape()); }, {},
         {in(), "\"k\"", "I64", "F32"});
  refuse([](EditableCase& c) { c.tensors["h0"] = Tensor(DType::f16, c.tensors["h0"].shape()); }, {},
         {in(), "\"h0\"", "F16"});
}

TEST_F(OpErrors, WrongOffsets) {
  const auto with_offsets = [](std::vector<std::int64_t> values) {
    return [values](EditableCase& c) {
      for (auto& [name, tensor] : c.tensors) {  // three tokens in one row
        if (tensor.shape()[1] != 1) continue;
        Shape shape = tensor.shape();
        std::swap(shape.extent[0], shape.extent[1]);
        tensor = Tensor(DType::f32, shape);
      }
      for (const char* name : {"h0", "dht", "ht", "dh0"}) c.tensors.erase(name);
      Tensor offsets(DType::i64, {static_cast<std::int64_t>(values.size())});
      std::copy(values.begin(), values.end(), offsets.as<std::int64_t>().begin());
      c.tensors["cu_seqlens"] = std::move(offsets);
    };
  };
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  refuse(with_offsets({}), {}, {in(), "cu_seqlens"});
  refuse(with_offsets({1, 3}), {}, {in(), "cu_seqlens", "1"});
  refuse(with_offsets({0, 2}), {}, {in(), "cu_seqlens", "2", "3"});
  refuse(with_offsets({0, 2, 1, 3}), {}, {in(), "cu_seqlens", "decreases"});
  refuse(with_offsets({0, kHuge, -kHuge, 3}), {}, {in(), "cu_seqlens"});
  refuse([](EditableCase& c) { c.tensors["cu_seqlens"] = Tensor(DType::f32, {2}); }, {}, {in(), "cu_seqlens", "F32"});
  refuse([](EditableCase& c) { c.tensors["cu_seqlens"] = Tensor(DType::i64, {2, 1}); }, {}, {in(), "cu_seqlens"});
}

TEST_F(OpErrors, StatesThatFitNoMemory) {
  const auto with_width = [](std::int64_t width) {
    return [=](EditableCase& c) {
      c.tensors.clear();
      for (const char* name : {"q", "k", "v"}) c.tensors[name] = Tensor(DType::f32, {1, 0, 1, width});
      for (const char* name : {"g", "beta", "lambda"}) c.tensors[name] = Tensor(DType::f32, {1, 0, 1});
    };
  };
  refuse(with_width(std::int64_t{1} << 40U), {}, {in(), "width", "1099511627776"});
  if (kSanitized) return;
  refuse(with_width(std::int64_t{1} << 20U), {}, {"cannot allocate", "4398046511104"});
}

TEST_F(OpErrors, WrongMetadata) {
  refuse([](EditableCase& c) { c.metadata.clear(); }, {}, {in(), "--rule", "linear", "gated_delta", "q_delta"});
  refuse([](EditableCase& c) { c.metadata["rule"] = "qdelta"; }, {}, {in(), "'qdelta'", "q_delta", "longhorn"});
  for (const char* scale : {"", "big", "1.0x", "nan", "1e60"}) {
    refuse([&](EditableCase& c) { c.metadata["scale"] = scale; }, {}, {in(), "scale", scale, "number"});
  }
  refuse([](EditableCase& c) { c.metadata["qk_l2norm"] = "maybe"; }, {}, {in(), "qk_l2norm", "'maybe'", "true"});
}

TEST_F(OpErrors, WrongOptions) {
  constexpr int kUsage = 2;
  refuse(nothing, {"--rule", "qdelta"}, {"--rule", "qdelta", "longhorn", "qdelta op --help"}, kUsage);
  refuse(nothing, {"--form", "fast"}, {"--form", "fast", "recurrent"}, kUsage);
  refuse(nothing, {"--dtype", "f16"}, {"--dtype", "f16", "bf16"}, kUsage);
  refuse(nothing, {"--chunk", "48"}, {"--chunk", "48", "64"}, kUsage);
  refuse(nothing, {"--threads", "-1"}, {"--threads", "-1"}, kUsage);
  refuse(nothing, {"--threads", "two"}, {"--threads", "two"}, kUsage);
  refuse(nothing, {"--scale", "big"}, {"--scale", "big"}, kUsage);
  refuse(nothing, {"--scale", "nan"}, {"scale", "nan"});
  refuse(nothing, {"--fast"}, {"--fast", "qdelta op --help"}, kUsage);
  refuse(nothing, {"more"}, {"more"}, kUsage);
  refuse(nothing, {"--device", "cuda"}, {"--device", "cuda", "cpu"});
  refuse(nothing, {"--device", "tpu"}, {"--device", "tpu", "cpu"});
}

TEST_F(OpErrors, RequiredOptions) {
  expect_failure(run_qdelta({"op"}), 2, {"--in"});
  expect_failure(run_qdelta({"op", "--in", golden("q_delta")}), 2, {"--out"});
  expect_failure(run_qdelta({"op", "--in"}), 2, {"--in"});
}

TEST_F(OpErrors, CorruptFiles) {
  const std::string good = read_file(golden("q_delta_short"));
  for (const std::string& bad :
       {std::string(), std::string("nonsense"), good.substr(0, 100), good.substr(0, good.size() - 4), good + "tail"}) {
    write_file(in(), bad);
    refuse_file({}, {in()});
  }
}

TEST_F(OpErrors, InputThatCannotBeRead) {
  expect_failure(run_qdelta({"op", "--in", folder_.file("none"), "--out", out()}), 1, {folder_.file("none")});
  expect_failure(run_qdelta({"op", "--in", folder_.path(), "--out", out()}), 1, {folder_.path()});
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(OpErrors, OutputThatCannotBeWritten) {
  const std::vector<std::string> outs = {folder_.file("no-such-folder/out"), folder_.path(), folder_.path() + "/",
                                         "/proc/out.safetensors"};
  for (const std::string& path : outs) {
    expect_failure(run_qdelta({"op", "--in", golden("q_delta_short"), "--out", path}), 1, {"cannot write", path});
  }
  expect_failure(run_qdelta({"op", "--in", golden("q_delta_short"), "--out", ""}), 1, {"cannot write"});
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(OpErrors, TheInputIsNotOverwritten) {
  EditableCase::read(golden("q_delta_short")).write(in());
  const std::string before = read_file(in());
  expect_failure(run_qdelta({"op", "--in", in(), "--out", in()}), 1, {"--out", in()});
  std::filesystem::create_symlink(in(), out());
  expect_failure(run_qdelta({"op", "--in", in(), "--out", out()}), 1, {"--out", out()});
  EXPECT_EQ(read_file(in()), before);
}

}  // namespace
}  // namespace qdelta::testing
