// qdelta chat: a conversation with a model. With the chat template of its folder each line is a message of the user,
// and the model answers as the assistant; without one the model goes on from each line. The state is kept between
// turns, so nothing is read twice.
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "cli/cli.h"
#include "cli/generate_common.h"
#include "cli/line_reader.h"
#include "infer/generator.h"
#include "infer/prompt.h"
#include "io/atomic_file.h"
#include "io/parse_json.h"
#include "io/regular_file.h"
#include "template/chat_template.h"

namespace qdelta {
namespace {

using nlohmann::ordered_json;

struct ChatFlags : GenerateFlags {
  std::string system;
  bool plain = false;
};

constexpr const char* kHelp =
    "  /help         this\n"
    "  /reset        forgets the conversation\n"
    "  /save FILE    keeps it: the state in FILE, and with a chat template the messages in FILE.json\n"
    "  /load FILE    goes on with one that was kept\n"
    "  /quit         ends, as does Ctrl-D\n";

bool is_array_of(const ordered_json& object, const char* name, bool (ordered_json::*is_one)() const noexcept) {
  const auto found = object.find(name);
  return found != object.end() && found->is_array() &&
         std::ranges::all_of(*found, [&](const ordered_json& value) { return (value.*is_one)(); });
}

class Conversation {
 public:
  Conversation(const ChatFlags& flags, const Loaded& loaded, const Device& device)
      : flags_(flags),
        loaded_(loaded),
        states_(loaded.model->config(), 1, device),
        generator_(*loaded.model, *loaded.tokenizer, states_),
        options_(flags.options) {
    if (!flags.plain) template_ = ChatTemplate::load(flags.model, *loaded.tokenizer);
    require(template_ != nullptr || flags.system.empty(),
            "--system needs a chat template, and {} has none (or --plain was given)", flags.model);
    reset();
    if (!flags.load_state.empty()) load(flags.load_state);
  }

  [[nodiscard]] bool has_template() const { return template_ != nullptr; }

  void reset() {
    states_.clear(0);
    reading_ = {};
    read_.clear();
    messages_ = ordered_json::array();
    if (!flags_.system.empty()) messages_.push_back({{"role", "system"}, {"content", flags_.system}});
  }

  void say(const std::string& line) {
    const std::vector<std::int32_t> tokens = has_template() ? next_of_chat(line) : next_of_text(line);
    if (tokens.empty()) return;
    reading_.add(tokens);
    const std::vector<Generated> results =
        generator_.generate({tokens}, options_, {0}, [](std::size_t, const std::string& text) {
          fmt::print("{}", text);
          std::fflush(stdout);
        });
    fmt::print("\n");
    const Generated& answer = results.front();
    reading_.add_but_last(answer.tokens);
    read_.insert(read_.end(), answer.tokens.begin(), answer.tokens.end());
    messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
    options_.sampling.seed += 1;  // another turn, other numbers
  }

  void save(const std::string& path) const {
    save_state(path, *loaded_.model, states_, 0, reading_.info);
    if (has_template()) {
      write_whole(path + ".json", ordered_json{{"messages", messages_}, {"tokens", read_}}.dump(2) + "\n");
    }
    fmt::print(stderr, "kept the state after {} tokens in {}\n", reading_.length(), path);
  }

  // Whatever is wrong with the files, the conversation is then as it was before.
  void load(const std::string& path) {
    ordered_json kept;
    std::vector<std::int32_t> read;
    if (has_template()) {
      const auto text = read_text_file_if_there(path + ".json");
      if (!text) fail(Status::io, "there is no {}.json, the messages of the conversation", path);
      kept = parse_ordered_json(*text, path + ".json");
      require(kept.is_object() && is_array_of(kept, "messages", &ordered_json::is_object) &&
                  is_array_of(kept, "tokens", &ordered_json::is_number_integer),
              "{}.json has no conversation", path);
      read = kept["tokens"].get<std::vector<std::int32_t>>();
    }
    ModelStates states(loaded_.model->config(), 1, states_.device());
    const Reading reading{load_state(path, *loaded_.model, states, 0)};
    require(!has_template() || static_cast<std::int64_t>(read.size()) == reading.length(),
            "{0}.json is not the conversation of {0}: it has {1} tokens, the state {2}", path, read.size(),
            reading.length());
    states_.copy(states, 0, 0);
    reading_ = reading;
    if (has_template()) messages_ = std::move(kept["messages"]);
    read_ = std::move(read);
  }

 private:
  // What of the conversation has not been read. A template may write what was said otherwise than it was generated;
  // then all of it is read again.
  std::vector<std::int32_t> next_of_chat(const std::string& line) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    std::vector<std::int32_t> all;
    try {
      all = template_->encode(messages_, true);
    } catch (const Error&) {
      messages_.erase(messages_.size() - 1);
      throw;
    }
    const bool continues =
        !read_.empty() && all.size() > read_.size() && std::equal(read_.begin(), read_.end(), all.begin());
    if (!continues) {
      states_.clear(0);
      reading_ = {};
      read_.clear();
    }
    const std::size_t known = std::exchange(read_, all).size();
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(known));
    return reading_.continued(std::move(all));
  }
  std::vector<std::int32_t> next_of_text(const std::string& line) {
    return reading_.continued(encode_prompt(*loaded_.tokenizer, line, flags_.bos && reading_.nothing()));
  }

  const ChatFlags& flags_;
  const Loaded& loaded_;
  ModelStates states_;
  Generator generator_;
  GenerationOptions options_;
  std::unique_ptr<ChatTemplate> template_;
  Reading reading_;
  ordered_json messages_;
  std::vector<std::int32_t> read_;  // with a template: the tokens of the conversation so far, the pending one too
};

// False at the end.
bool take(Conversation& conversation, const std::string& line) {
  const auto argument = [&](const std::string& command) {
    return line.starts_with(command + " ") ? line.substr(command.size() + 1) : std::string();
  };
  if (line == "/quit") return false;
  if (line == "/help") {
    fmt::print("{}", kHelp);
  } else if (line == "/reset") {
    conversation.reset();
  } else if (const std::string to = argument("/save"); !to.empty()) {
    conversation.save(to);
  } else if (const std::string from = argument("/load"); !from.empty()) {
    conversation.load(from);
  } else if (line.starts_with("/")) {
    fmt::print("There is no such command:\n{}", kHelp);
  } else {
    conversation.say(line);
  }
  return true;
}

void run_chat(ChatFlags& flags) {
  flags.options.sampling.check();
  require(flags.options.max_tokens > 0, "max-tokens is {}, expected at least 1", flags.options.max_tokens);
  check_save_state(flags);
  const Loaded loaded(flags);
  Conversation conversation(flags, loaded, flags.device.open());
  fmt::print("{}; it remembers everything so far in its state.\n/help lists the commands, /quit or Ctrl-D ends.\n",
             conversation.has_template()
                 ? "Type a line and the model answers"
                 : "Type a line and the model goes on from it (its folder has no chat template)");
  LineReader lines;
  while (const std::optional<std::string> line = lines.read("> ")) {
    try {
      if (!take(conversation, *line)) break;
    } catch (const Error& error) {  // of a file or a template: the conversation goes on
      fmt::print("{}\n", error.what());
    }
  }
  if (!flags.save_state.empty()) conversation.save(flags.save_state);
}

}  // namespace

void add_chat(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a model, turn by turn; its state is kept between turns");
  add_generation_flags(*command, *flags, "Most tokens of an answer",
                       "The same seed and the same lines give the same text; each turn has other random numbers");
  command->add_option("--system", flags->system,
                      "A system message, where the folder has a chat template that takes one");
  command->add_flag("--plain", flags->plain, "Without the folder's chat template: the model goes on from each line");
  command->add_flag("!--no-bos", flags->bos, "Do not begin with the begin-of-text token (without a template)");
  command->footer(
      "Examples:\n"
      "  qdelta chat --model run --temperature 0.8\n"
      "  qdelta chat --model M --system \"Answer in one sentence.\"\n"
      "  qdelta chat --model M --save-state talk.state\n"
      "  qdelta chat --model M --load-state talk.state --save-state talk.state      (goes on where it ended)");
  command->callback([flags] { run_chat(*flags); });
}

}  // namespace qdelta
