#include "cli/op_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "kernels/recurrence_check.h"

namespace qdelta {
namespace {

Rule rule_of(const std::string& path, const std::string& name) {
  const std::optional<Rule> rule = rule_from_name(name);
  require(rule.has_value(), "{}: there is no rule '{}'; the rules are {}", path, name, rule_names());
  return *rule;
}

float number_of(const std::string& path, const std::string& key, const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const auto result = static_cast<float>(value);
  require(error == std::errc() && rest == end && std::isfinite(result), "{}: metadata {} is '{}', expected a number",
          path, key, text);
  return result;
}

bool flag_of(const std::string& path, const std::string& key, const std::string& text) {
  if (text == "true" || text == "True" || text == "1") return true;
  if (text == "false" || text == "False" || text == "0") return false;
  fail(Status::invalid_argument, "{}: metadata {} is '{}', expected true or false", path, key, text);
}

void check_gradient(std::string_view name, const ConstTensorView& view, const Shape& expected, std::string_view like) {
  require(!view || view.shape == expected, "{} has shape {}, expected {} like {}", name, view.shape.text(),
          expected.text(), like);
}

}  // namespace

std::string rule_names() {
  std::string names;
  for (const RuleTraits& rule : kRuleTraits) {
    if (!names.empty()) names += ", ";
    names += rule.name;
  }
  return names;
}

OpCase::OpCase(const std::string& path, const OpSettings& settings, bool backward)
    : file_(SafetensorsFile::open(path)) {
  in.q = tensor("q", settings.dtype);
  in.k = tensor("k", settings.dtype);
  in.v = tensor("v", settings.dtype);
  in.g = tensor("g", DType::f32);
  in.beta = optional_tensor("beta", DType::f32);
  in.lambda = optional_tensor("lambda", DType::f32);
  in.h0 = optional_tensor("h0", DType::f32);
  if (backward) {
    require(file_.contains("do"),
            "{}: --backward needs the gradient \"do\" [B, T, HV, V], which the file does not have", path);
    d_o = tensor("do", settings.dtype);
    d_ht = optional_tensor("dht", DType::f32);
  }
  read_settings(settings);
  try {
    if (file_.contains("cu_seqlens")) {
      offsets_ = integers_of(file_.view("cu_seqlens"), "cu_seqlens");
      require(!offsets_.empty(), "cu_seqlens is empty, expected N + 1 offsets");
      in.cu_seqlens = offsets_;
    }
    check(in);
    check_gradient("do", d_o, in.v.shape, "v");
    check_gradient("dht", d_ht, state_shape(), "the states");
  } catch (const Error& error) {
    throw Error(error.status(), fmt::format("{}: {}", path, error.what()));
  }
  // A file without tokens is small whatever its widths are, and the states are not.
  require(safetensors_bytes(state_shape(), DType::f32).has_value(), "{}: states of shape {} do not fit any memory",
          path, state_shape().text());
}

Shape OpCase::gate_shape() const { return {in.v.extent(0), in.v.extent(1), in.v.extent(2)}; }

Shape OpCase::state_shape() const {
  const auto packed = static_cast<std::int64_t>(in.cu_seqlens.size());
  return {packed > 0 ? packed - 1 : in.q.extent(0), in.v.extent(2), in.q.extent(3), in.v.extent(3)};
}

const std::string* OpCase::setting(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  return found == file_.metadata().end() ? nullptr : &found->second;
}

void OpCase::read_settings(const OpSettings& settings) {
  const std::string& path = file_.path();
  const std::string* rule = settings.rule ? &*settings.rule : setting("rule");
  require(rule != nullptr, "{}: neither --rule nor the file's metadata names a rule; the rules are {}", path,
          rule_names());
  in.rule = rule_of(path, *rule);

  const std::string* scale = setting("scale");
  if (settings.scale) {
    in.scale = *settings.scale;
  } else if (scale != nullptr) {
    in.scale = number_of(path, "scale", *scale);
  } else if (in.q.shape.rank == 4) {  // else check() will say what is wrong with q
    in.scale = 1.0F / std::sqrt(static_cast<float>(std::max<std::int64_t>(in.q.extent(3), 1)));
  }

  const std::string* norm = setting("qk_l2norm");
  if (settings.qk_l2norm) {
    in.qk_l2norm = *settings.qk_l2norm;
  } else if (norm != nullptr) {
    in.qk_l2norm = flag_of(path, "qk_l2norm", *norm);
  }
}

ConstTensorView OpCase::tensor(std::string_view name, DType dtype) {
  const ConstTensorView view = file_.view(name);
  if (view.dtype == dtype) return view;
  require(view.dtype == DType::f32 || view.dtype == DType::bf16 || view.dtype == DType::f64,
          "{}: tensor \"{}\" is {}, expected F32, BF16 or F64", file_.path(), name, name_of(view.dtype));
  return std::as_const(converted_.emplace_back(converted(view, dtype))).view();
}

ConstTensorView OpCase::optional_tensor(std::string_view name, DType dtype) {
  return file_.contains(name) ? tensor(name, dtype) : ConstTensorView();
}

}  // namespace qdelta
