#include "compare/variant.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "model/mixer_types.h"
#include "rule/rule.h"

namespace qdelta::compare {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string Variant::title() const {
  std::string text(mixer_type(mixer).title);
  if (fixed_lambda) text += fmt::format(", λ = {}", *fixed_lambda);
  if (no_decay) text += ", no decay";
  return text;
}

ModelConfig Variant::applied(const ModelConfig& base) const {
  ModelConfig config = base;
  config.choose_mixer(mixer);
  if (fixed_lambda) config.fixed_lambda = fixed_lambda;
  if (no_decay) config.use_decay = false;
  config.check();
  return config;
}

Variant variant_of(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, '@');
  const MixerType& type = mixer_type(parts[0]);
  const auto rule = rule_from_name(type.name);
  Variant variant{std::string(text), std::string(parts[0]), std::nullopt, false};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    constexpr std::string_view kLambda = "lambda=";
    if (parts[i] == "no_decay") {
      require(rule && traits_of(*rule).decay_is_optional(), "'{}': {} has no decay that could be left out", text,
              type.title);
      variant.no_decay = true;
      continue;
    }
    require(parts[i].starts_with(kLambda), "'{}': '{}' is no change; there are lambda=NUMBER and no_decay", text,
            parts[i]);
    require(rule && traits_of(*rule).reads_lambda, "'{}': {} has no lambda", text, type.title);
    const std::string_view number = parts[i].substr(kLambda.size());
    double value = 0;
    const char* end = number.data() + number.size();
    const auto read = std::from_chars(number.data(), end, value);
    require(read.ec == std::errc() && read.ptr == end && std::isfinite(value), "'{}': '{}' is no number", text, number);
    variant.fixed_lambda = value;
  }
  return variant;
}

std::vector<Variant> variants_of(std::string_view text) {
  std::vector<Variant> variants;
  for (const std::string_view part : split(text, ',')) {
    Variant variant = variant_of(part);
    const bool twice =
        std::any_of(variants.begin(), variants.end(), [&](const Variant& other) { return other.name == variant.name; });
    require(!twice, "'{}' is named twice", part);
    variants.push_back(std::move(variant));
  }
  return variants;
}

std::vector<Variant> paper_ablations() {
  return variants_of(
      "q_delta,q_delta@lambda=0.2,q_delta@lambda=0.5,q_delta@lambda=0.8,q_delta@no_decay,q_delta@lambda=1");
}

}  // namespace qdelta::compare
