#include "io/mapping_guard.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

namespace qdelta {

// In a list that only grows, so that a signal handler can walk it at any moment; an entry that is free is used again.
struct GuardedMapping::Entry {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};  // 0: free
  std::string path;                    // written while it is free
  bool taken = false;                  // under the mutex
  Entry* next = nullptr;
};

namespace {

std::mutex entries_mutex;
std::atomic<void*> entries{nullptr};

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<void*>::is_always_lock_free,
              "a signal handler reads them");

// What a signal handler may do: write, and nothing that allocates.
void say(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

GuardedMapping::Entry* GuardedMapping::first_entry() noexcept { return static_cast<Entry*>(entries.load()); }

GuardedMapping::GuardedMapping(const void* address, std::size_t size, const std::string& path) {
  const std::lock_guard lock(entries_mutex);
  for (Entry* entry = first_entry(); entry != nullptr && entry_ == nullptr; entry = entry->next) {
    if (!entry->taken) entry_ = entry;
  }
  if (entry_ == nullptr) {
    entry_ = new Entry;  // NOLINT(cppcoreguidelines-owning-memory): never freed, see above
    entry_->next = first_entry();
    entries = entry_;
  }
  entry_->path = path;
  entry_->taken = true;
  entry_->begin = reinterpret_cast<std::uintptr_t>(address);
  entry_->end = reinterpret_cast<std::uintptr_t>(address) + size;
}

GuardedMapping::~GuardedMapping() {
  if (entry_ == nullptr) return;
  const std::lock_guard lock(entries_mutex);
  entry_->end = 0;
  entry_->taken = false;
}

GuardedMapping::GuardedMapping(GuardedMapping&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}

GuardedMapping& GuardedMapping::operator=(GuardedMapping&& other) noexcept {
  std::swap(entry_, other.entry_);
  return *this;
}

// Ends the process where the address is one of a mapped file.
void report_lost_mapping(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const GuardedMapping::Entry* entry = GuardedMapping::first_entry(); entry != nullptr; entry = entry->next) {
    if (at < entry->begin || at >= entry->end) continue;
    say("qdelta: ");
    say({entry->path.data(), entry->path.size()});
    say(" cannot be read any more: it was shortened while it was in use, or its disk failed. Put it back and run "
        "the command again.\n");
    ::_exit(1);
  }
}

namespace {

void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  report_lost_mapping(info->si_addr);
  // Not ours: back from here the same instruction fails again, as if there were no handler.
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  ::sigaction(signal, &plain, nullptr);
}

}  // namespace

void install_mapping_guard() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace qdelta
