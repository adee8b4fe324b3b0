// What a run shows of itself while it goes on.
//
// On a terminal, one line that is rewritten in place:
//
//   340M  ━━━━━━────────  11440/28600   40%  loss 2.7130  val 2.7451  lr 7.14e-4  grad 0.31  812k tok/s  41% of limit
//
// with the time gone and the time left at its end, fitted to the width of the terminal: what matters least goes first.
// In a file or a pipe, plain lines at a slower pace. How a line reads is a pure function; only Progress writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qdelta {

struct ProgressState {
  std::string_view name;  // of the run; may be empty
  std::int64_t step = 0;
  std::int64_t total = 0;
  std::int64_t first_step = 0;  // done before this session, where the run was resumed
  std::optional<double> loss, validation_loss, learning_rate, gradient_norm, tokens_per_second;
  std::optional<double> epoch;              // how often the data was gone through
  std::int64_t ranks = 1;                   // that share the tokens
  std::optional<double> fraction_of_limit;  // of what the machine could do at most
  std::optional<double> seconds;            // since this session began; gives the time left too
};

struct ProgressStyle {
  bool color = false;
  bool unicode = false;  // for the bar
};

// "42s", "3m05s", "2h03m", "3d04h".
[[nodiscard]] std::string duration_text(double seconds);
// Three significant digits with a unit: "812", "8.12k", "812k", "1.3M", "2.1B".
[[nodiscard]] std::string count_text(double count);
// Assuming that the steps to come take as long as those of this session; nullopt before there are any.
[[nodiscard]] std::optional<double> remaining_seconds(const ProgressState& state);

// The line for a terminal of that many columns, a little narrower so that the cursor fits behind it.
[[nodiscard]] std::string progress_line(const ProgressState& state, int columns, const ProgressStyle& style);
// The same facts for a file.
[[nodiscard]] std::string plain_progress_line(const ProgressState& state);
// How many columns a text takes: escape sequences none, every other character one.
[[nodiscard]] int columns_of(std::string_view text) noexcept;

struct ProgressOptions {
  double terminal_interval = 0.1;      // seconds between two drawings of the live line, at least
  double plain_interval = 10;          // seconds between two plain lines
  std::int64_t plain_every_steps = 0;  // and also at every multiple of this; 0: only by time
};

// Decides which states become plain lines: the first, the last, those with a new validation loss, and others at the
// pace of the options.
class PlainPace {
 public:
  explicit PlainPace(const ProgressOptions& options) : options_(options) {}
  // `now` in seconds, from any origin. True means that the line is taken as printed.
  [[nodiscard]] bool due(const ProgressState& state, double now);

 private:
  ProgressOptions options_;
  std::optional<double> last_time_, last_validation_;
};

// Shows a run on a file descriptor, standard output unless told otherwise. A display that went away must not end a run:
// after a failed write it stays silent. Not for several threads at once.
//
// There is nothing to undo when the process is interrupted, stopped or killed: each drawing is one write that shows the
// cursor again before it ends.
class Progress {
 public:
  explicit Progress(int descriptor = 1, const ProgressOptions& options = {});
  ~Progress();  // finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  Progress(Progress&&) = delete;
  Progress& operator=(Progress&&) = delete;

  // Call it as often as there is news; most calls cost two comparisons.
  void update(const ProgressState& state);
  // A line of text that stays, above the live one.
  void message(std::string_view text);
  // Draws the last state and leaves the line.
  void finish();

 private:
  [[nodiscard]] std::string erase_sequence(int columns) const;
  void draw(bool leave);
  void write(std::string_view bytes);

  int descriptor_;
  ProgressOptions options_;
  PlainPace pace_;
  ProgressStyle style_;
  bool terminal_ = false;
  bool broken_ = false;
  bool pending_ = false;   // a state came that was not drawn
  int drawn_columns_ = 0;  // of the line that stands there now
  double last_time_ = -1e300;
  std::string name_;
  ProgressState state_;
};

// Whether the environment and the descriptor allow a live line, colors (NO_COLOR, https://no-color.org) and characters
// beyond ASCII; and the columns of the terminal, 80 where it does not say.
[[nodiscard]] bool is_live_terminal(int descriptor);
[[nodiscard]] ProgressStyle style_from_environment();
[[nodiscard]] int terminal_columns(int descriptor);

}  // namespace qdelta
