// The command line: parses, runs the chosen subcommand, and turns what went wrong into one line and an exit status
// (1: it failed, 2: it was called wrongly).
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/help_format.h"
#include "cli/validators.h"
#include "io/filesystem_error.h"
#include "io/mapping_guard.h"

namespace {

constexpr int kFailed = 1;
constexpr int kCalledWrongly = 2;

constexpr const char* kDescription =
    "qdelta: an engine for delta-rule language models. Trains them, runs them, and gives their operator: one "
    "recurrence,\n"
    "seven rules from linear attention to Q-Delta, forward and backward, at once or token by token.";

constexpr const char* kExamples =
    "Examples:\n"
    "  qdelta demo                                        three small models learn to recall, in two minutes\n"
    "  qdelta train --text book.txt --out run             a language model from a text file\n"
    "  qdelta generate --model run --prompt \"Once\" --stream\n"
    "  qdelta serve --model run                           the same over HTTP\n"
    "  qdelta eval --model M --tasks lambada_openai --data D\n"
    "                                                     the benchmarks that models are compared by\n"
    "  qdelta info                                        what this build and this machine can do\n"
    "  qdelta op --in case.safetensors --out result.safetensors --backward\n"
    "                                                     a rule and its gradients on tensors from a file\n"
    "  qdelta bench op                                    how fast it is here\n"
    "\n"
    "qdelta SUBCOMMAND --help says more about each.";

// The option that was given several times although it takes one value; "" where that is not what went wrong.
std::string given_twice(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() != 1 || option->results().size() < 2) continue;
    return fmt::format("{} is given {} times ({}), expected once", option->get_name(), option->results().size(),
                       fmt::join(option->results(), ", "));
  }
  return "";
}

// What the parser says, and where to read on. Where a subcommand is missing or unknown, the list of those there are.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;
  std::string command = app.get_name();
  for (auto chosen = at->get_subcommands(); !chosen.empty(); chosen = at->get_subcommands()) {
    at = chosen.front();
    command += " " + at->get_name();
  }
  std::vector<std::string> names;
  for (const CLI::App* subcommand : at->get_subcommands(nullptr)) names.push_back(subcommand->get_name());
  std::string problem = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (const std::string twice = given_twice(*at); !twice.empty()) problem = twice;
  }
  if (!names.empty()) {
    const std::vector<std::string> unknown = app.remaining(true);
    if (!unknown.empty()) {
      const bool option = unknown.front().starts_with('-');
      problem = fmt::format("there is no {} '{}'", option ? "option" : "subcommand", unknown.front());
    } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
      problem = "nothing to do";
    }
    problem += fmt::format("; the subcommands are {}", fmt::join(names, ", "));
  }
  return fmt::format("{}\nSee {} --help.", problem, command);
}

int failed(const char* message) {
  fmt::print(stderr, "qdelta: {}\n", message);
  return kFailed;
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "qdelta");
  app.formatter(std::make_shared<qdelta::HelpFormat>());
  app.set_version_flag("--version", "qdelta " QDELTA_VERSION, "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.footer(kExamples);
  app.get_formatter()->column_width(34);
  qdelta::add_demo(app);
  qdelta::add_tokenize(app);
  qdelta::add_train(app);
  qdelta::add_generate(app);
  qdelta::add_chat(app);
  qdelta::add_serve(app);
  qdelta::add_perplexity(app);
  qdelta::add_eval(app);
  qdelta::add_logits(app);
  qdelta::add_plot(app);
  qdelta::add_analyze(app);
  qdelta::add_compare(app);
  qdelta::add_op(app);
  qdelta::add_bench(app);
  qdelta::add_verify(app);
  qdelta::add_info(app);
  qdelta::check_integers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help or --version
    app.exit(request);
  } catch (const CLI::RuntimeError& request) {  // a subcommand has said everything and chosen its exit status
    return request.get_exit_code();
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "qdelta: {}\n", usage_message(app, error));
    return kCalledWrongly;
  }
  // What a full disk or a closed pipe refused must not look like success.
  std::cout.flush();
  if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return failed("cannot write the output");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // A file that grows beyond `ulimit -f` is then a write that fails, with a message, and not the end of the program.
  std::signal(SIGXFSZ, SIG_IGN);
  qdelta::install_mapping_guard();
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return failed("out of memory");
  } catch (const std::filesystem::filesystem_error& error) {
    return failed(qdelta::reason_of(error).c_str());
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}
