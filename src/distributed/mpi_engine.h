// The one thread of a process that calls MPI. Collectives are handed to it and done in order, so that they go on while
// the caller computes: Open MPI moves large messages only inside its calls. Messages between two ranks do not wait
// behind a collective. It polls with pauses, because a thread that spins inside MPI_Wait would take a core from the
// computation, and so that it can answer abort() at any time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/memory.h"
#include "distributed/mpi_library.h"

namespace qdelta::mpi {

class Engine {
 public:
  // Initializes MPI. Throws where the library is missing or does not see `expected_size` ranks.
  explicit Engine(int expected_size);
  // Waits up to a minute for the other ranks to do the same, then ends them.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  [[nodiscard]] const std::string& version() const noexcept { return version_; }

  // For any thread. The memory that they use must stay until the task is done.
  class Task;
  using Handle = std::shared_ptr<Task>;
  [[nodiscard]] Handle submit(std::function<void()> collective);
  [[nodiscard]] Handle send(std::span<const std::byte> data, int to);
  [[nodiscard]] Handle recv(std::span<std::byte> data, int from);
  static void wait(const Handle& task);
  // Touches none of the memory of tasks any more; what is left is abort().
  void halt() noexcept;
  [[noreturn]] void abort(std::string_view message) noexcept;

  // For collectives, on the engine's thread: messages of any length, in pieces that MPI can count.
  using Requests = std::vector<Request>;
  void start_send(std::span<const std::byte> data, int to, Requests& started);
  void start_recv(std::span<std::byte> data, int from, Requests& started);
  void start_broadcast(std::span<std::byte> data, int root, Requests& started);
  void start_barrier(Requests& started);
  void finish(Requests& started);
  // At least so many bytes, kept between collectives.
  [[nodiscard]] std::span<std::byte> scratch(std::size_t bytes);

 private:
  struct Message;
  class Backoff;

  void run(int expected_size);
  void initialize(int expected_size);
  void serve();
  void finalize();
  void post(const Message& message);
  bool test(Requests& started);
  void pause(Backoff& backoff);
  void progress_messages();
  void handle_control(std::unique_lock<std::mutex>& lock);
  void check(int result, const char* call);
  [[noreturn]] void end_all(std::string_view message) noexcept;
  void start_send(std::span<const std::byte> data, int to, Communicator communicator, Requests& started);
  void start_recv(std::span<std::byte> data, int from, Communicator communicator, Requests& started);

  const Library& mpi_;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::string version_;
  Communicator collectives_ = nullptr, messages_ = nullptr, control_ = nullptr;
  int exceptions_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;  // for the engine
  std::queue<Handle> tasks_;
  std::vector<Message> new_messages_;
  bool ready_ = false, finalizing_ = false, halted_ = false, aborting_ = false;
  std::string abort_message_;
  std::exception_ptr failure_;  // of the start
  std::condition_variable started_;

  // The engine's own.
  std::vector<Message> messages_under_way_;
  AlignedBuffer scratch_;
  std::thread thread_;
};

class Engine::Task {
 public:
  explicit Task(std::function<void()> work) : work_(std::move(work)) {}

 private:
  friend class Engine;
  std::function<void()> work_;
  std::atomic<bool> done_{false};
};

struct Engine::Message {
  std::span<const std::byte> out;
  std::span<std::byte> in;
  int peer = 0;
  Handle task;
  Requests requests;
};

}  // namespace qdelta::mpi
