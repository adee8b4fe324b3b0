#include "train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace qdelta {
namespace {

constexpr int kDefaultColumns = 80;
constexpr int kNarrowestBar = 8;
constexpr int kWidestBar = 32;
constexpr int kBehindLine = 3;  // columns kept free, so that the ^C a terminal echoes does not begin a new row
constexpr int kNameRank = 9;
constexpr int kBarRank = 6;

constexpr std::string_view kReset = "\x1b[0m";
constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kBar = "\x1b[36m";  // cyan reads on light and dark

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A value of the line. The lower its rank, the longer it stays when the terminal is narrow.
struct Part {
  int rank = 0;
  std::string label;
  std::string value;
  std::string unit;

  [[nodiscard]] int columns() const {
    return columns_of(label) + (label.empty() ? 0 : 1) + columns_of(value) + columns_of(unit);
  }
  [[nodiscard]] std::string text(bool color) const {
    const std::string_view dim = color ? kDim : "";
    const std::string_view bold = color ? kBold : "";
    const std::string_view reset = color ? kReset : "";
    std::string result;
    if (!label.empty()) result += fmt::format("{}{}{} ", dim, label, reset);
    result += label.empty() ? value : fmt::format("{}{}{}", bold, value, reset);
    if (!unit.empty()) result += fmt::format("{}{}{}", dim, unit, reset);
    return result;
  }
};

std::string number_text(double value, const char* format) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format(fmt::runtime(format), value);
}

std::string loss_text(double value) { return number_text(value, value < 100 ? "{:.4f}" : "{:.4g}"); }

// "5.5e-4": fmt would write the exponent with two digits.
std::string rate_text(double value) {
  if (value == 0) return "0";
  std::string text = number_text(value, "{:.2e}");
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;
  const int exponent = std::atoi(text.c_str() + e + 1);
  return fmt::format("{}e{}", text.substr(0, e), exponent);
}

double fraction_done(const ProgressState& state) {
  if (state.total <= 0) return 0;
  return std::clamp(static_cast<double>(state.step) / static_cast<double>(state.total), 0.0, 1.0);
}

std::string step_text(const ProgressState& state) {
  if (state.total <= 0) return fmt::format("step {}", state.step);
  // As wide at the start as at the end, so that nothing moves.
  const auto digits = fmt::formatted_size("{}", state.total);
  return fmt::format("{:>{}}/{}", state.step, digits, state.total);
}

// In the order of the line. Only the last step is 100%.
std::vector<Part> parts_of(const ProgressState& state) {
  std::vector<Part> parts;
  if (!state.name.empty()) parts.push_back({kNameRank, "", std::string(state.name), ""});
  parts.push_back({0, "", step_text(state), ""});
  if (state.total > 0) parts.push_back({4, "", fmt::format("{:3.0f}%", std::floor(100 * fraction_done(state))), ""});
  if (state.epoch) parts.push_back({9, "epoch", number_text(*state.epoch, "{:.2f}"), ""});
  if (state.loss) parts.push_back({1, "loss", loss_text(*state.loss), ""});
  if (state.validation_loss) parts.push_back({3, "val", loss_text(*state.validation_loss), ""});
  if (state.learning_rate) parts.push_back({8, "lr", rate_text(*state.learning_rate), ""});
  if (state.gradient_norm) parts.push_back({7, "grad", number_text(*state.gradient_norm, "{:.3g}"), ""});
  if (state.tokens_per_second) parts.push_back({5, "", count_text(*state.tokens_per_second), " tok/s"});
  if (state.tokens_per_second && state.ranks > 1) {
    const double each = *state.tokens_per_second / static_cast<double>(state.ranks);
    parts.push_back({11, "", count_text(each), fmt::format(" on each of {} ranks", state.ranks)});
  }
  if (state.fraction_of_limit) {
    parts.push_back({10, "", number_text(100 * *state.fraction_of_limit, "{:.0f}") + "%", " of limit"});
  }
  if (state.seconds) parts.push_back({6, "", duration_text(*state.seconds), ""});
  if (const auto left = remaining_seconds(state)) parts.push_back({2, "", duration_text(*left), " left"});
  return parts;
}

// Columns of all parts, two spaces between each.
int columns_of(const std::vector<Part>& parts) {
  int columns = 0;
  for (const Part& part : parts) columns += part.columns() + 2;
  return columns - 2;
}

std::string bar_text(double fraction, int columns, const ProgressStyle& style) {
  const std::string_view full = style.unicode ? "━" : "#";
  const std::string_view empty = style.unicode ? "─" : "-";
  const int filled = static_cast<int>(std::floor(fraction * columns));
  std::string result(style.color ? kBar : "");
  for (int i = 0; i < columns; ++i) {
    if (i == filled && style.color) result.append(kReset).append(kDim);
    result.append(i < filled ? full : empty);
  }
  if (style.color) result += kReset;
  return result;
}

// No control characters in what goes to the terminal, and no more columns than allowed.
std::string cut(std::string_view text, int columns) {
  std::string result;
  int used = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool starts = (byte & 0xc0U) != 0x80U;
    if (starts && used++ == columns) break;
    result.push_back(byte < 0x20U || byte == 0x7fU ? ' ' : c);
  }
  return result;
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
  return value == nullptr ? "" : value;
}

}  // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds >= 1e9) return ">30y";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t minutes = whole / 60;
  const std::int64_t hours = minutes / 60;
  if (minutes == 0) return fmt::format("{}s", whole);
  if (hours == 0) return fmt::format("{}m{:02d}s", minutes, whole % 60);
  if (hours < 24) return fmt::format("{}h{:02d}m", hours, minutes % 60);
  return fmt::format("{}d{:02d}h", hours / 24, hours % 24);
}

std::string count_text(double count) {
  if (!std::isfinite(count)) return number_text(count, "{}");
  constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "B", "T"};
  std::size_t unit = 0;
  // 999.5 rounds to 1000, which is one unit up.
  while (std::abs(count) >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  if (unit == 0 && count == std::floor(count)) return fmt::format("{:.0f}", count);
  return fmt::format("{:.{}f}{}", count, std::abs(count) >= 99.95 ? 0 : std::abs(count) >= 9.995 ? 1 : 2, kUnits[unit]);
}

std::optional<double> remaining_seconds(const ProgressState& state) {
  const std::int64_t done = state.step - state.first_step;
  if (!state.seconds || done <= 0 || state.total <= 0) return std::nullopt;
  const auto to_do = static_cast<double>(std::max<std::int64_t>(state.total - state.step, 0));
  return *state.seconds * to_do / static_cast<double>(done);
}

int columns_of(std::string_view text) noexcept {
  int columns = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte == 0x1bU) {  // up to the letter that ends the sequence
      ++at;               // past the bracket
      while (at + 1 < text.size() && (static_cast<unsigned char>(text[at + 1]) < 0x40U)) ++at;
      ++at;
    } else if ((byte & 0xc0U) != 0x80U) {
      ++columns;
    }
  }
  return columns;
}

std::string progress_line(const ProgressState& state, int columns, const ProgressStyle& style) {
  const int room = std::max(columns - kBehindLine, 1);
  std::vector<Part> parts = parts_of(state);
  int bar = state.total > 0 ? kNarrowestBar : 0;
  while (columns_of(parts) + (bar > 0 ? bar + 2 : 0) > room) {
    // The highest rank goes; of equals the later one.
    std::size_t worst = 0;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].rank >= parts[worst].rank) worst = i;
    }
    if (bar > 0 && parts[worst].rank < kBarRank) {
      bar = 0;
    } else if (parts.size() > 1) {
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(worst));
    } else {
      return cut(parts.front().value, room);
    }
  }
  // It stands behind the name, where there is one, and takes what is left.
  if (bar > 0) bar = std::min(room - columns_of(parts) - 2, kWidestBar);
  const std::size_t bar_at = !state.name.empty() && parts.front().rank == kNameRank ? 1 : 0;
  std::string line;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) line += "  ";
    if (i == bar_at && bar > 0) {
      line += bar_text(fraction_done(state), bar, style) + "  ";
    }
    line += parts[i].text(style.color);
  }
  return line;
}

std::string plain_progress_line(const ProgressState& state) {
  std::string line;
  for (const Part& part : parts_of(state)) line += (line.empty() ? "" : "  ") + part.text(false);
  return line;
}

bool PlainPace::due(const ProgressState& state, double now) {
  const bool first = !last_time_.has_value();
  const bool last = state.total > 0 && state.step >= state.total;
  const bool validated = state.validation_loss.has_value() && state.validation_loss != last_validation_;
  const bool counted = options_.plain_every_steps > 0 && state.step % options_.plain_every_steps == 0;
  if (!first && !last && !validated && !counted && now - *last_time_ < options_.plain_interval) return false;
  last_time_ = now;
  last_validation_ = state.validation_loss;
  return true;
}

Progress::Progress(int descriptor, const ProgressOptions& options)
    : descriptor_(descriptor),
      options_(options),
      pace_(options),
      style_(style_from_environment()),
      terminal_(is_live_terminal(descriptor)) {}

Progress::~Progress() { finish(); }

void Progress::update(const ProgressState& state) {
  state_ = state;
  name_ = cut(state.name, 40);
  state_.name = name_;
  pending_ = true;
  const double time = steady_seconds();
  if (!terminal_) {
    if (!pace_.due(state_, time)) return;
    pending_ = false;
    write(plain_progress_line(state_) + '\n');
    return;
  }
  if (time - last_time_ < options_.terminal_interval) return;
  last_time_ = time;
  draw(false);
}

void Progress::message(std::string_view text) {
  if (!terminal_) {
    write(std::string(text) + '\n');
    return;
  }
  const bool live = drawn_columns_ > 0;
  write(erase_sequence(terminal_columns(descriptor_)) + std::string(text) + '\n');
  drawn_columns_ = 0;
  if (live) draw(false);
}

void Progress::finish() {
  if (terminal_ && (pending_ || drawn_columns_ > 0)) draw(true);
  if (!terminal_ && pending_) write(plain_progress_line(state_) + '\n');
  pending_ = false;
}

// Back to where the line began. A terminal made narrower has broken the line in several, and the cursor is in the last.
std::string Progress::erase_sequence(int columns) const {
  const int rows_above = drawn_columns_ > columns ? (drawn_columns_ - 1) / columns : 0;
  return rows_above > 0 ? fmt::format("\r\x1b[{}A\x1b[J", rows_above) : "\r\x1b[J";
}

void Progress::draw(bool leave) {
  const int columns = terminal_columns(descriptor_);
  const std::string line = progress_line(state_, columns, style_);
  // The cursor is hidden only within this one write; [K clears what is left of a longer line before.
  const std::string begin = drawn_columns_ > columns ? erase_sequence(columns) : "\r";
  write(fmt::format("\x1b[?25l{}{}\x1b[K\x1b[?25h{}", begin, line, leave ? "\n" : ""));
  drawn_columns_ = leave ? 0 : columns_of(line);
  pending_ = false;
}

void Progress::write(std::string_view bytes) {
  while (!bytes.empty() && !broken_) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return;  // a terminal that is slow to read misses a drawing
    if (written <= 0) {
      broken_ = true;
    } else {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
}

bool is_live_terminal(int descriptor) {
  return ::isatty(descriptor) == 1 && std::string_view(environment("TERM")) != "dumb";
}

ProgressStyle style_from_environment() {
  std::string locale = environment("LC_ALL");
  if (locale.empty()) locale = environment("LC_CTYPE");
  if (locale.empty()) locale = environment("LANG");
  std::transform(locale.begin(), locale.end(), locale.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  // Containers often set no locale at all in front of a terminal that knows UTF-8.
  const bool unicode =
      locale.empty() || locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  return {environment("NO_COLOR")[0] == '\0', unicode};
}

int terminal_columns(int descriptor) {
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultColumns;
  return size.ws_col;
}

}  // namespace qdelta
