#include "io/temporary_name.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <sstream>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "io/regular_file.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNamePrefix = ".qdelta-";
constexpr std::string_view kNameSuffix = ".tmp";

// Empty where it cannot be read.
std::string contents_of_system_file(const std::string& path) {
  try {
    return read_text_file(path);
  } catch (const Error&) {
    return "";
  }
}

struct Owner {
  std::uint32_t host = 0, boot = 0;  // 0: unknown
  std::uint64_t space = 0;           // 0: unknown
  std::int64_t process = 0;
  std::uint64_t start = 0;  // 0: unknown
};

std::uint32_t short_hash(std::initializer_list<std::string_view> texts) {
  return static_cast<std::uint32_t>(hash_texts(texts) >> 32U) | 1U;  // never 0
}

std::uint32_t this_host() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return 0;
  return short_hash({name.data(), contents_of_system_file("/etc/machine-id")});
}

std::uint32_t this_boot() {
  const std::string id = contents_of_system_file("/proc/sys/kernel/random/boot_id");
  return id.empty() ? 0 : short_hash({id});
}

// "pid:[4026531836]"
std::uint64_t this_space() {
  std::error_code error;
  const std::string link = fs::read_symlink("/proc/self/ns/pid", error).string();
  const std::size_t begin = link.find('[');
  std::uint64_t number = 0;
  if (error || begin == std::string::npos) return 0;
  std::from_chars(link.data() + begin + 1, link.data() + link.size(), number);
  return number;
}

// When a process began; 0 where it is over, though its parent has not asked about it yet. Nullopt: not to be known.
std::optional<std::uint64_t> start_of(const std::string& process) {
  const std::string stat = contents_of_system_file("/proc/" + process + "/stat");
  const std::size_t name_end = stat.rfind(')');  // a name may have spaces and parentheses
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  constexpr std::size_t kState = 0, kStart = 19;  // fields 3 and 22 of proc(5)
  if (words.size() <= kStart) return std::nullopt;
  if (words[kState] == "Z" || words[kState] == "X") return 0;
  std::uint64_t start = 0;
  std::from_chars(words[kStart].data(), words[kStart].data() + words[kStart].size(), start);
  return start;
}

// Of this process. Looked up again in a child after a fork.
Owner self() {
  static const Owner machine{.host = this_host(), .boot = this_boot(), .space = this_space()};
  static std::atomic<std::int64_t> known_process{0};
  static std::atomic<std::uint64_t> known_start{0};
  Owner owner = machine;
  owner.process = ::getpid();
  if (known_process != owner.process) {
    known_start = start_of("self").value_or(0);
    known_process = owner.process;
  }
  owner.start = known_start;
  return owner;
}

// The numbers between the dashes of a name.
std::optional<Owner> owner_of(std::string_view name) {
  const std::size_t begin = name.find(kNamePrefix);
  if (begin == std::string_view::npos || !name.ends_with(kNameSuffix)) return std::nullopt;
  name.remove_prefix(begin + kNamePrefix.size());
  if (name.size() < kNameSuffix.size()) return std::nullopt;
  name.remove_suffix(kNameSuffix.size());
  std::array<std::uint64_t, 6> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const int base = i < 2 ? 16 : 10;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), numbers[i], base);
    if (read.ec != std::errc()) return std::nullopt;
    name.remove_prefix(static_cast<std::size_t>(read.ptr - name.data()));
    const bool last = i + 1 == numbers.size();
    if (last != name.empty() || (!last && name.front() != '-')) return std::nullopt;
    if (!last) name.remove_prefix(1);
  }
  if (numbers[0] > UINT32_MAX || numbers[1] > UINT32_MAX || numbers[3] > INT32_MAX) return std::nullopt;
  return Owner{.host = static_cast<std::uint32_t>(numbers[0]),
               .boot = static_cast<std::uint32_t>(numbers[1]),
               .space = numbers[2],
               .process = static_cast<std::int64_t>(numbers[3]),
               .start = numbers[4]};
}

}  // namespace

std::string temporary_name(std::string_view word) {
  static std::atomic<std::uint64_t> made{0};
  const Owner owner = self();
  return fmt::format("{}{}{:08x}-{:08x}-{}-{}-{}-{}{}", word, kNamePrefix, owner.host, owner.boot, owner.space,
                     owner.process, owner.start, made++, kNameSuffix);
}

bool is_leftover(const std::string& name) {
  const std::optional<Owner> owner = owner_of(name);
  const Owner own = self();
  if (!owner || own.host == 0 || owner->host != own.host || own.boot == 0 || owner->boot == 0) return false;
  if (owner->boot != own.boot) return true;
  if (own.space == 0 || owner->space != own.space || owner->process == 0) return false;
  if (::kill(static_cast<pid_t>(owner->process), 0) != 0 && errno == ESRCH) return true;
  const std::optional<std::uint64_t> start = start_of(std::to_string(owner->process));
  return start && owner->start != 0 && *start != owner->start;
}

void remove_leftovers(const std::string& folder) noexcept {
  try {
    std::error_code error;
    std::vector<fs::path> found;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (is_leftover(it->path().filename().string())) found.push_back(it->path());
    }
    for (const fs::path& path : found) fs::remove_all(path, error);
  } catch (const std::exception&) {  // no memory: then another time
    return;
  }
}

}  // namespace qdelta
