#include "plot/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "plot/text.h"

namespace qdelta::plot {
namespace {

constexpr const char* kMinus = "−";  // the sign, as wide as a digit; a hyphen is too short

struct Unit {
  double size;
  const char* count;
  const char* si;
};
constexpr std::array<Unit, 5> kUnits = {
    {{1e12, "T", "T"}, {1e9, "B", "G"}, {1e6, "M", "M"}, {1e3, "k", "k"}, {1, "", ""}}};
constexpr double kLargestWithUnit = 1e15;
constexpr int kDigitsOfDouble = 15;
constexpr double kSmallestPlain = 1e-3;
constexpr double kFirstThousand = 1e4;  // "2000" is as short as "2.5k" is awkward

// What the axis steps by: mantissa * 10^exponent.
struct Step {
  double mantissa = 1;
  int exponent = 0;

  // `count` steps, exact to the last digit: 3 * 0.1 would be 0.30000000000000004.
  [[nodiscard]] double times(double count) const {
    return exponent >= 0 ? count * mantissa * std::pow(10, exponent) : count * mantissa / std::pow(10, -exponent);
  }
  [[nodiscard]] double size() const { return times(1); }
  // Digits behind the point that its multiples need, in units of 10^unit_exponent.
  [[nodiscard]] int decimals(int unit_exponent) const {
    const int digits = mantissa == 2.5 ? 1 : 0;
    return std::max(0, digits - (exponent - unit_exponent));
  }
};

Step step_for(double span, int at_most) {
  const double rough = span / std::max(at_most, 1);
  int exponent = static_cast<int>(std::floor(std::log10(rough)));
  for (;; ++exponent) {
    for (const double mantissa : {1.0, 2.0, 2.5, 5.0}) {
      const Step step{mantissa, exponent};
      if (step.size() >= rough * (1 - 1e-12)) return step;
    }
  }
}

std::string fixed(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", std::abs(value), std::clamp(decimals, 0, 17));
  const bool zero = text.find_first_not_of("0.") == std::string::npos;
  return value < 0 && !zero ? kMinus + text : text;
}

std::string without_trailing_zeros(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

const Unit& unit_of(double size, Units units, double thousands_from) {
  if (units == Units::plain) return kUnits.back();
  for (const Unit& unit : kUnits) {
    if (size >= unit.size && (unit.size != 1e3 || size >= thousands_from)) return unit;
  }
  return kUnits.back();
}

const char* name_of(const Unit& unit, Units units) { return units == Units::si ? unit.si : unit.count; }

// Labels for first, first + 1, ..., last steps.
void label_steps(Ticks& ticks, const Step& step, double first, double last, Units units) {
  double subtracted = 0;  // steps
  const double largest = std::max(std::abs(first), std::abs(last));
  // Where the numbers share more leading digits than one would read, those go to the note.
  if (largest > 20'000) {
    // A power of ten in the axis's own numbers, as a count of steps.
    const double digits = std::ceil(std::log10((last - first + 1) * step.mantissa));
    const double block = std::pow(10, digits + 1) / (10 * step.mantissa);
    // Towards zero, so that the sign of the labels is that of the numbers.
    subtracted = last <= 0 ? -std::floor(-last / block) * block : std::floor(first / block) * block;
    first -= subtracted;
    last -= subtracted;
  }
  const double size = step.times(std::max(std::abs(first), std::abs(last)));
  const bool small = size < kSmallestPlain || (size < kSmallestPlain * 10 && step.decimals(0) > 3);
  const bool as_power = size > 0 && (small || size >= kLargestWithUnit);
  const int power = as_power ? static_cast<int>(std::floor(std::log10(size) + 1e-9)) : 0;
  const bool with_units = power == 0 && units != Units::plain;
  const double thousands_from = size >= kFirstThousand || step.size() >= 1000 ? 1e3 : kLargestWithUnit;
  for (double index = first; index <= last; ++index) {
    std::string label;
    const double value = step.times(index);
    const Unit& unit = unit_of(std::abs(value), with_units ? units : Units::plain, thousands_from);
    if (index == 0) {
      label = "0";
    } else if (unit.size > 1) {
      label = without_trailing_zeros(fixed(value / unit.size, step.decimals(static_cast<int>(std::log10(unit.size))))) +
              name_of(unit, units);
    } else {
      const Step scaled{step.mantissa, step.exponent - power};
      label = fixed(scaled.times(index), scaled.decimals(0));
    }
    ticks.major.push_back({step.times(index + subtracted), std::move(label)});
  }
  if (power != 0) ticks.note = "×" + power_of_ten(power);
  if (subtracted != 0) {
    const double value = step.times(subtracted);
    const double away = std::abs(value);
    const bool plain = away >= kSmallestPlain && away < kLargestWithUnit;
    const std::string shown = plain ? without_trailing_zeros(fixed(away, step.decimals(0)))
                                    : number_text(away, kDigitsOfDouble, Units::plain);
    ticks.note += fmt::format("{}{} {}", ticks.note.empty() ? "" : " ", value < 0 ? kMinus : "+", shown);
  }
}

std::string decade_text(int exponent, bool as_power, Units units) {
  if (as_power) return power_of_ten(exponent);
  if (exponent < 0) return fixed(std::pow(10, exponent), -exponent);
  return number_text(std::pow(10, exponent), 1, units);
}

// The multiples of powers of ten within the range.
std::vector<double> multiples(double low, double high, std::initializer_list<int> factors, int stride = 1) {
  std::vector<double> values;
  const int first = static_cast<int>(std::floor(std::log10(low))) - 1;
  const int last = static_cast<int>(std::ceil(std::log10(high))) + 1;
  for (int exponent = first; exponent <= last; ++exponent) {
    if (stride > 1 && ((exponent % stride) + stride) % stride != 0) continue;
    for (const int factor : factors) {
      const double value = Step{static_cast<double>(factor), exponent}.size();
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) values.push_back(value);
    }
  }
  return values;
}

}  // namespace

std::string number_text(double value, int digits, Units units) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "∞" : std::string(kMinus) + "∞";
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size < kSmallestPlain || size >= kLargestWithUnit) {
    int exponent = static_cast<int>(std::floor(std::log10(size)));
    std::string mantissa = without_trailing_zeros(fixed(Step{value, -exponent}.size(), digits - 1));
    if (mantissa == "10" || mantissa == std::string(kMinus) + "10") {  // 9.99 rounded up
      mantissa.pop_back();
      ++exponent;
    }
    if (mantissa == "1") return power_of_ten(exponent);
    return mantissa + "×" + power_of_ten(exponent);
  }
  // Rounded first: 999999 to three digits is one million, not a thousand thousands.
  const int digits_before_point = static_cast<int>(std::floor(std::log10(size))) + 1;
  const double place = std::pow(10, digits_before_point - digits);
  const Unit& unit = unit_of(place > 1 ? std::round(size / place) * place : size, units, 1e3);
  const double scaled = value / unit.size;
  const int before_point = static_cast<int>(std::floor(std::log10(std::abs(scaled)))) + 1;
  return without_trailing_zeros(fixed(scaled, std::max(0, digits - before_point))) + name_of(unit, units);
}

Ticks linear_ticks(double low, double high, int at_most, Units units) {
  Ticks ticks;
  if (!(high > low)) return ticks;
  for (int wanted = at_most; wanted >= 1; --wanted) {
    const Step step = step_for(high - low, wanted);
    const double slack = (high - low) * 1e-9;
    const double first = std::ceil((low - slack) / step.size());
    const double last = std::floor((high + slack) / step.size());
    if (last - first + 1 > at_most) continue;  // `wanted` intervals may have one tick more
    if (last >= first) label_steps(ticks, step, first, last, units);
    return ticks;
  }
  return ticks;
}

Ticks log_ticks(double low, double high, int at_most, Units units) {
  Ticks ticks;
  if (!(high > low) || !(low > 0)) return ticks;
  const double decades = std::log10(high / low);
  std::vector<double> values = multiples(low, high, {1});
  const auto fits = [&](const std::vector<double>& some) { return static_cast<int>(some.size()) <= at_most; };

  if (values.size() < 3) {
    // Few decades: the densest of these that fits.
    for (const auto& more :
         {multiples(low, high, {1, 3}), multiples(low, high, {1, 2, 5}), multiples(low, high, {1, 2, 3, 5, 7}),
          multiples(low, high, {1, 2, 3, 4, 5, 6, 7, 8, 9})}) {
      if (fits(more) && (values.size() < 4 || decades < 0.7)) values = more;
    }
    if (values.size() < 3) {  // a small part of one decade is as good as linear
      ticks = linear_ticks(low, high, at_most, units);
      std::erase_if(ticks.major, [](const Tick& tick) { return tick.value <= 0; });
      return ticks;
    }
    for (const double value : values) ticks.major.push_back({value, number_text(value, 1, units)});
  } else {
    for (const int stride : {2, 3, 4, 5, 6, 10, 20, 30, 50, 100, 200}) {
      if (!fits(values)) values = multiples(low, high, {1}, stride);
    }
    // Names of units as far as there are any, else powers, but not both on one axis.
    const bool as_powers = !values.empty() && (values.front() < 0.99e-3 || values.back() > 1.01e12);
    for (const double value : values) {
      const int exponent = static_cast<int>(std::lround(std::log10(value)));
      ticks.major.push_back({value, decade_text(exponent, as_powers, units)});
    }
  }
  if (decades <= 8) {
    for (const double value : multiples(low, high, {1, 2, 3, 4, 5, 6, 7, 8, 9})) {
      const bool labelled = std::any_of(ticks.major.begin(), ticks.major.end(),
                                        [&](const Tick& tick) { return std::abs(tick.value - value) <= 1e-9 * value; });
      if (!labelled) ticks.minor.push_back(value);
    }
  }
  return ticks;
}

Ticks axis_ticks(Scale scale, double low, double high, int at_most, Units units) {
  return scale == Scale::log ? log_ticks(low, high, at_most, units) : linear_ticks(low, high, at_most, units);
}

}  // namespace qdelta::plot
