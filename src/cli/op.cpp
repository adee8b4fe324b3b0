// `qdelta op`: a rule over the sequences of a file, and its gradients.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "cli/cli.h"
#include "cli/device_flags.h"
#include "cli/op_case.h"
#include "core/error.h"
#include "core/threads.h"
#include "io/atomic_file.h"

namespace qdelta {
namespace {

constexpr const char* kOpHelp =
    "The input has q k [B,T,H,K], v [B,T,HV,V], g [B,T,HV] (log of the decay), and beta and lambda [B,T,HV] where the\n"
    "rule reads them; optionally h0 [N,HV,K,V], and cu_seqlens [N+1] where sequences are packed along T. --backward "
    "also\n"
    "reads do [B,T,HV,V] and, if there, dht [N,HV,K,V]. Each may be F32, BF16 or F64 (cu_seqlens: I32 or I64). "
    "Metadata\n"
    "rule, scale and qk_l2norm hold where the command line is silent.\n"
    "\n"
    "The output has o and ht; --backward adds dq dk dv dg dbeta dlambda, and dh0 if there is an h0. It appears whole "
    "or\n"
    "not at all.\n"
    "\n"
    "Examples:\n"
    "  qdelta op --in case.safetensors --out result.safetensors\n"
    "  qdelta op --in case.safetensors --out result.safetensors --backward --rule gated_delta --form recurrent\n"
    "  qdelta op --in case.safetensors --out result.safetensors --dtype bf16 --chunk 128 --threads 4\n"
    "  qdelta op --in case.safetensors --out result.safetensors --dtype bf16 --device cuda";

// In the order of enum Form.
constexpr std::array<const char*, 4> kForms = {"chunk", "recurrent", "oracle", "auto"};
const char* name_of(Form form) { return kForms.at(static_cast<std::size_t>(form)); }

struct OpOptions {
  std::string in, out, device = "cpu", form = name_of(Form::automatic), dtype = "f32";
  std::string rule;
  float scale = 0;
  bool qk_l2norm = false, backward = false;
  int chunk = 0, threads = 0;
  // Which of those that the file may also say were given.
  const CLI::Option *rule_given = nullptr, *scale_given = nullptr, *norm_given = nullptr;

  [[nodiscard]] OpSettings settings() const {
    OpSettings result;
    if (rule_given->count() > 0) result.rule = rule;
    if (scale_given->count() > 0) result.scale = scale;
    if (norm_given->count() > 0) result.qk_l2norm = qk_l2norm;
    result.dtype = dtype == "bf16" ? DType::bf16 : DType::f32;
    return result;
  }
  [[nodiscard]] Execution execution() const {
    const auto index = std::find(kForms.begin(), kForms.end(), form) - kForms.begin();
    return {.form = static_cast<Form>(index), .chunk = chunk};
  }
};

// What an op ran as, and the seconds it took.
struct Ran {
  ResolvedForm as;
  double seconds = 0;

  // The length of the chunks; 0 for the forms that have none.
  [[nodiscard]] int chunk() const { return as.form == Form::chunk ? as.tokens : 0; }
  [[nodiscard]] std::string text() const {
    if (as.form == Form::chunk) return fmt::format("{} of {}", name_of(as.form), as.tokens);
    return as.tokens > 1 ? fmt::format("{} in blocks of {}", name_of(as.form), as.tokens) : name_of(as.form);
  }
};

// The tensors that will be written, in the order they are made.
class Results {
 public:
  TensorView add(const char* name, DType dtype, const Shape& shape) {
    names_.emplace_back(name);
    return tensors_.emplace_back(dtype, shape).view();
  }
  void write(const std::string& path, const std::map<std::string, std::string>& metadata) const {
    std::vector<NamedTensor> named;
    for (std::size_t i = 0; i < tensors_.size(); ++i) named.push_back({names_[i], tensors_[i].view()});
    write_safetensors(path, named, metadata);
  }
  [[nodiscard]] std::string text() const {
    std::vector<std::string> words;
    for (std::size_t i = 0; i < tensors_.size(); ++i) words.push_back(names_[i] + " " + tensors_[i].shape().text());
    return fmt::format("{}", fmt::join(words, ", "));
  }

 private:
  std::vector<std::string> names_;
  std::deque<Tensor> tensors_;  // views into them stay valid
};

// The arguments of a call where the device can reach them. On the CPU they are used where they are.
class OnDevice {
 public:
  explicit OnDevice(const Device& device) : device_(device) {}

  ConstTensorView in(const ConstTensorView& host) {
    if (!host || device_.gpu == nullptr) return host;
    const TensorView copy = tensors_.emplace_back(device_, host.dtype, host.shape).view();
    upload(device_, copy.data, host.data, tensors_.back().bytes());
    return copy;
  }
  RecurrenceInputs in(const RecurrenceInputs& host) {
    RecurrenceInputs copy = host;
    for (ConstTensorView* view : {&copy.q, &copy.k, &copy.v, &copy.g, &copy.beta, &copy.lambda, &copy.h0}) {
      *view = in(*view);
    }
    return copy;
  }
  TensorView out(const TensorView& host) {
    if (device_.gpu == nullptr) return host;
    const TensorView copy = tensors_.emplace_back(device_, host.dtype, host.shape).view();
    outputs_.push_back({host, copy});
    return copy;
  }

  // Runs an op and brings the results back. The seconds are the op's, with getting its scratch memory.
  template <class Args>
  Ran run(void (*op)(const Device&, const Args&, Workspace&), const Args& args) {
    Workspace workspace(device_);
    synchronize(device_);
    const auto start = std::chrono::steady_clock::now();
    op(device_, args, workspace);
    synchronize(device_);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    for (const auto& [host, copy] : outputs_) {
      download(device_, host.data, copy.data, static_cast<std::size_t>(host.shape.elements()) * size_of(host.dtype));
    }
    return {.as = resolve(device_, args), .seconds = took.count()};
  }

 private:
  struct Output {
    TensorView host, copy;
  };
  Device device_;
  std::deque<DeviceTensor> tensors_;
  std::vector<Output> outputs_;
};

Ran forward(const Device& device, const OpCase& from, const Execution& run, DType dtype, Results& results) {
  OnDevice there(device);
  RecurrenceForward args;
  args.in = there.in(from.in);
  args.o = there.out(results.add("o", dtype, from.in.v.shape));
  args.ht = there.out(results.add("ht", DType::f32, from.state_shape()));
  args.run = run;
  return there.run(recurrence_forward, args);
}

Ran backward(const Device& device, const OpCase& from, const Execution& run, DType dtype, Results& results) {
  OnDevice there(device);
  RecurrenceBackward args;
  args.in = there.in(from.in);
  args.d_o = there.in(from.d_o);
  args.d_ht = there.in(from.d_ht);
  args.dq = there.out(results.add("dq", dtype, from.in.q.shape));
  args.dk = there.out(results.add("dk", dtype, from.in.k.shape));
  args.dv = there.out(results.add("dv", dtype, from.in.v.shape));
  args.dg = there.out(results.add("dg", DType::f32, from.gate_shape()));
  args.dbeta = there.out(results.add("dbeta", DType::f32, from.gate_shape()));
  args.dlambda = there.out(results.add("dlambda", DType::f32, from.gate_shape()));
  if (from.in.h0) args.dh0 = there.out(results.add("dh0", DType::f32, from.state_shape()));
  args.run = run;
  return there.run(recurrence_backward, args);
}

void check_paths(const OpOptions& options) {
  std::error_code none;  // a path that cannot be looked at is no match; opening it will say why
  require(!std::filesystem::equivalent(options.in, options.out, none), "--out {} is the input file itself",
          options.out);
  // Better to hear now than after the computation that the result cannot be written; this leaves no trace.
  const AtomicFile probe(options.out);
}

void print_summary(const OpOptions& options, const OpCase& from, const Results& results, const Ran& forward,
                   const std::optional<Ran>& backward) {
  const RecurrenceInputs& in = from.in;
  const int threads = forward.as.form == Form::oracle ? 1 : thread_count(options.threads);
  const std::string packed =
      in.cu_seqlens.empty() ? "" : fmt::format("{} packed sequences, ", in.cu_seqlens.size() - 1);
  fmt::print("rule     {}, scale {}, {} L2 norm of q and k\n", traits_of(in.rule).name, in.scale,
             in.qk_l2norm ? "with" : "without");
  fmt::print("inputs   q {}, v {}, {}{} h0, {}\n", in.q.shape.text(), in.v.shape.text(), packed,
             in.h0 ? "with" : "without", options.dtype);
  const std::string where =
      options.device != "cpu" ? options.device : fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
  fmt::print("form     {}", forward.text());
  if (backward && backward->text() != forward.text()) fmt::print(", backward {}", backward->text());
  fmt::print(", {}\n", where);
  fmt::print("time     forward {:.3f} ms", forward.seconds * 1e3);
  if (backward) fmt::print(", backward {:.3f} ms", backward->seconds * 1e3);
  fmt::print("\nwrote    {}: {}\n", options.out, results.text());
}

void run(const OpOptions& options) {
  const OpSettings settings = options.settings();
  const Execution execution = options.execution();
  const std::shared_ptr<const cuda::Context> gpu = open_gpu_named(options.device);
  const Device device{.threads = options.threads, .gpu = gpu.get(), .activations = settings.dtype};
  const OpCase from(options.in, settings, options.backward);
  check_paths(options);

  Results results;
  const Ran forward_ran = forward(device, from, execution, settings.dtype, results);
  std::optional<Ran> backward_ran;
  if (options.backward) backward_ran = backward(device, from, execution, settings.dtype, results);
  std::map<std::string, std::string> metadata{{"rule", std::string(traits_of(from.in.rule).name)},
                                              {"scale", fmt::format("{}", from.in.scale)},
                                              {"qk_l2norm", from.in.qk_l2norm ? "true" : "false"},
                                              {"form", name_of(forward_ran.as.form)},
                                              {"chunk", std::to_string(forward_ran.chunk())},
                                              {"dtype", options.dtype},
                                              {"device", options.device},
                                              {"qdelta_version", QDELTA_VERSION}};
  if (backward_ran) {
    metadata["backward_form"] = name_of(backward_ran->as.form);
    metadata["backward_chunk"] = std::to_string(backward_ran->chunk());
  }
  results.write(options.out, metadata);
  print_summary(options, from, results, forward_ran, backward_ran);
}

}  // namespace

void add_op(CLI::App& app) {
  CLI::App* op = app.add_subcommand("op", "Run a rule, and its gradients, on tensors from a safetensors file");
  op->footer(kOpHelp);
  auto options = std::make_shared<OpOptions>();
  OpOptions& o = *options;
  op->add_option("--in", o.in, "The input file")->required()->option_text("CASE");
  op->add_option("--out", o.out, "The file to write")->required()->option_text("RESULT");
  std::vector<std::string> rules;
  rules.reserve(kRuleCount);
  for (const RuleTraits& rule : kRuleTraits) rules.emplace_back(rule.name);
  o.rule_given = op->add_option("--rule", o.rule, "The rule (metadata 'rule'): " + rule_names())
                     ->check(CLI::IsMember(rules))
                     ->option_text("RULE");
  op->add_option("--form", o.form,
                 "auto (default): what is fastest; chunk: matrix products over chunks of tokens; recurrent: a few "
                 "tokens\nat a time, backward token by token; oracle: token by token in float64, to check the others")
      ->check(CLI::IsMember(std::vector<std::string>(kForms.begin(), kForms.end())))
      ->option_text("FORM");
  op->add_option("--chunk", o.chunk, "Tokens in a chunk: 16, 32, 64 or 128; 0 (default): 64, where chunks are used")
      ->check(CLI::IsMember({0, 16, 32, 64, 128}))
      ->option_text("N");
  op->add_option("--dtype", o.dtype,
                 "f32 (default) or bf16: the type of q, k, v and do, and so of o, dq, dk and dv. Gates, states and\n"
                 "their gradients are f32 either way, as in trained models")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->option_text("TYPE");
  op->add_option("--device", o.device,
                 "Where to compute: cpu (default), cuda, or cuda:1 for the second GPU, which have the chunk form")
      ->option_text("DEVICE");
  op->add_option("--threads", o.threads, "0 (default): all. The result does not depend on it")
      ->check(CLI::Range(0, 4096))
      ->option_text("N");
  o.scale_given =
      op->add_option("--scale", o.scale, "Factor of the output (metadata 'scale', else K^-1/2)")->option_text("X");
  o.norm_given = op->add_flag("--qk-l2norm,!--no-qk-l2norm", o.qk_l2norm,
                              "Whether to L2-normalise q and k first (metadata 'qk_l2norm', else not)");
  op->add_flag("--backward", o.backward, "Also compute the gradients");
  op->callback([options] { run(*options); });
}

}  // namespace qdelta
