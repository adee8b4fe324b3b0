#include "distributed/mpi_engine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "core/error.h"

namespace qdelta::mpi {
namespace {

// MPI counts in int; pieces this long cost nothing more.
constexpr std::size_t kPiece = std::size_t{64} << 20;
constexpr int kTag = 0;  // messages of one kind are matched by their order
constexpr std::chrono::seconds kFinalizeTimeout{60};
constexpr std::chrono::seconds kAbortTimeout{10};

template <class Byte, class Action>
void for_each_piece(std::span<Byte> data, const Action& action) {
  for (std::size_t at = 0; at < data.size(); at += kPiece) {
    action(data.subspan(at, std::min(kPiece, data.size() - at)));
  }
}

}  // namespace

// How long to pause between two looks: not at all at first, then longer and longer.
class Engine::Backoff {
 public:
  std::chrono::microseconds next() {
    constexpr int kWithout = 64;
    constexpr int kLongest = 200;
    if (++looks_ < kWithout) return std::chrono::microseconds{0};
    return std::chrono::microseconds{std::min(kLongest, 10 + (looks_ - kWithout))};
  }

 private:
  int looks_ = 0;
};

Engine::Engine(int expected_size) : mpi_(library()), exceptions_(std::uncaught_exceptions()) {
  thread_ = std::thread([this, expected_size] { run(expected_size); });
  std::unique_lock lock(mutex_);
  started_.wait(lock, [this] { return ready_ || failure_ != nullptr; });
  if (failure_ == nullptr) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(failure_);
}

Engine::~Engine() {
  bool failed = std::uncaught_exceptions() > exceptions_;
  {
    const std::lock_guard lock(mutex_);
    failed = failed || halted_;
    finalizing_ = !failed;
  }
  if (failed) abort("this rank ended because of an error");
  changed_.notify_one();
  thread_.join();
}

Engine::Handle Engine::submit(std::function<void()> collective) {
  auto task = std::make_shared<Task>(std::move(collective));
  {
    const std::lock_guard lock(mutex_);
    tasks_.push(task);
  }
  changed_.notify_one();
  return task;
}

Engine::Handle Engine::send(std::span<const std::byte> data, int to) {
  auto task = std::make_shared<Task>(nullptr);
  post({.out = data, .in = {}, .peer = to, .task = task, .requests = {}});
  return task;
}

Engine::Handle Engine::recv(std::span<std::byte> data, int from) {
  auto task = std::make_shared<Task>(nullptr);
  post({.out = {}, .in = data, .peer = from, .task = task, .requests = {}});
  return task;
}

void Engine::post(const Message& message) {
  {
    const std::lock_guard lock(mutex_);
    new_messages_.push_back(message);
  }
  changed_.notify_one();
}

void Engine::wait(const Handle& task) { task->done_.wait(false); }

void Engine::halt() noexcept {
  const std::lock_guard lock(mutex_);
  halted_ = true;
  changed_.notify_one();
}

void Engine::abort(std::string_view message) noexcept {
  if (std::this_thread::get_id() == thread_.get_id()) end_all(message);
  {
    const std::lock_guard lock(mutex_);
    if (!aborting_) abort_message_ = message;
    aborting_ = true;
  }
  changed_.notify_one();
  // The engine ends the process, unless MPI keeps it: then its launcher sees that a rank failed and ends the others.
  std::this_thread::sleep_for(kAbortTimeout);
  std::_Exit(EXIT_FAILURE);
}

void Engine::end_all(std::string_view message) noexcept {
  fmt::print(stderr, "rank {} of {}: {}\n", rank_, size_, message);
  std::fflush(stderr);
  mpi_.abort(mpi_.world, EXIT_FAILURE);
  std::_Exit(EXIT_FAILURE);
}

void Engine::check(int result, const char* call) {
  if (result == kSuccess) return;
  std::array<char, kStringLength> text{};
  int length = 0;
  mpi_.error_string(result, text.data(), &length);
  end_all(fmt::format("{}: {}", call, std::string_view(text.data(), static_cast<std::size_t>(length))));
}

void Engine::run(int expected_size) {
  // By default the kernel may end a pause fifty microseconds late, which is longer than most of ours are.
  ::prctl(PR_SET_TIMERSLACK, 1000UL);
  try {
    initialize(expected_size);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    started_.notify_one();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ready_ = true;
    started_.notify_one();
  }
  serve();
  finalize();
}

void Engine::initialize(int expected_size) {
  int provided = 0;
  if (mpi_.init_thread(nullptr, nullptr, kThreadSerialized, &provided) != kSuccess) {
    fail(Status::internal, "MPI_Init_thread failed");
  }
  mpi_.comm_set_errhandler(mpi_.world, mpi_.errors_return);  // communicators made from it have it too
  check(mpi_.comm_rank(mpi_.world, &rank_), "MPI_Comm_rank");
  check(mpi_.comm_size(mpi_.world, &size_), "MPI_Comm_size");
  version_ = mpi::version(mpi_);
  if (provided < kThreadSerialized) end_all(fmt::format("{} was built without threads", version_));
  if (size_ != expected_size) {
    end_all(
        fmt::format("{} processes were started, but {} sees {}: start them with the mpirun of that library, or "
                    "with srun --mpi=pmix",
                    expected_size, version_, size_));
  }
  Communicator local = nullptr;
  check(mpi_.comm_split_type(mpi_.world, kCommTypeShared, rank_, mpi_.info_null, &local), "MPI_Comm_split_type");
  check(mpi_.comm_rank(local, &local_rank_), "MPI_Comm_rank");
  check(mpi_.comm_size(local, &local_size_), "MPI_Comm_size");
  check(mpi_.comm_dup(mpi_.world, &collectives_), "MPI_Comm_dup");
  check(mpi_.comm_dup(mpi_.world, &messages_), "MPI_Comm_dup");
  check(mpi_.comm_dup(mpi_.world, &control_), "MPI_Comm_dup");
}

void Engine::serve() {
  Backoff backoff;
  while (true) {
    Handle task;
    {
      std::unique_lock lock(mutex_);
      if (messages_under_way_.empty()) {
        changed_.wait(
            lock, [this] { return !tasks_.empty() || !new_messages_.empty() || finalizing_ || halted_ || aborting_; });
      }
      handle_control(lock);
      if (!tasks_.empty()) {
        task = tasks_.front();
        tasks_.pop();
      } else if (finalizing_ && new_messages_.empty() && messages_under_way_.empty()) {
        return;
      }
    }
    if (task != nullptr) {
      task->work_();
      task->work_ = nullptr;
      task->done_ = true;
      task->done_.notify_all();
      backoff = Backoff();
    } else {
      pause(backoff);
      if (messages_under_way_.empty()) backoff = Backoff();
    }
  }
}

// All ranks finalize together, or the ones that go on would wait for the ones that are gone.
void Engine::finalize() {
  Requests barrier(1);
  check(mpi_.ibarrier(control_, barrier.data()), "MPI_Ibarrier");
  const auto end = std::chrono::steady_clock::now() + kFinalizeTimeout;
  Backoff backoff;
  while (!test(barrier)) {
    if (std::chrono::steady_clock::now() > end) end_all("this rank has ended, and others have not");
    pause(backoff);
  }
  mpi_.finalize();
}

// What other threads ask for, before anything else.
void Engine::handle_control(std::unique_lock<std::mutex>& lock) {
  if (halted_) changed_.wait(lock, [this] { return aborting_; });
  if (!aborting_) return;
  const std::string message = abort_message_;
  lock.unlock();
  end_all(message);
}

void Engine::pause(Backoff& backoff) {
  const auto duration = backoff.next();
  std::unique_lock lock(mutex_);
  if (duration.count() > 0) {
    changed_.wait_for(lock, duration, [this] { return !new_messages_.empty() || halted_ || aborting_; });
  } else {
    lock.unlock();
    ::sched_yield();
    lock.lock();
  }
  handle_control(lock);
  std::vector<Message> fresh = std::exchange(new_messages_, {});
  lock.unlock();
  for (Message& message : fresh) {
    start_send(message.out, message.peer, messages_, message.requests);
    start_recv(message.in, message.peer, messages_, message.requests);
    messages_under_way_.push_back(std::move(message));
  }
  progress_messages();
}

void Engine::progress_messages() {
  std::erase_if(messages_under_way_, [this](Message& message) {
    if (!test(message.requests)) return false;
    message.task->done_ = true;
    message.task->done_.notify_all();
    return true;
  });
}

bool Engine::test(Requests& started) {
  int done = 0;
  check(mpi_.testall(static_cast<int>(started.size()), started.data(), &done, nullptr), "MPI_Testall");
  return done != 0;
}

void Engine::finish(Requests& started) {
  Backoff backoff;
  while (!test(started)) pause(backoff);
  started.clear();
}

std::span<std::byte> Engine::scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) {
    scratch_ = AlignedBuffer();  // first, so that the two need not fit side by side
    scratch_ = AlignedBuffer(bytes, AlignedBuffer::Fill::none);
  }
  return {scratch_.data(), scratch_.size()};
}

void Engine::start_send(std::span<const std::byte> data, int to, Communicator communicator, Requests& started) {
  for_each_piece(data, [&](std::span<const std::byte> piece) {
    Request request = nullptr;
    check(mpi_.isend(piece.data(), static_cast<int>(piece.size()), mpi_.byte, to, kTag, communicator, &request),
          "MPI_Isend");
    started.push_back(request);
  });
}

void Engine::start_recv(std::span<std::byte> data, int from, Communicator communicator, Requests& started) {
  for_each_piece(data, [&](std::span<std::byte> piece) {
    Request request = nullptr;
    check(mpi_.irecv(piece.data(), static_cast<int>(piece.size()), mpi_.byte, from, kTag, communicator, &request),
          "MPI_Irecv");
    started.push_back(request);
  });
}

void Engine::start_send(std::span<const std::byte> data, int to, Requests& started) {
  start_send(data, to, collectives_, started);
}

void Engine::start_recv(std::span<std::byte> data, int from, Requests& started) {
  start_recv(data, from, collectives_, started);
}

void Engine::start_broadcast(std::span<std::byte> data, int root, Requests& started) {
  for_each_piece(data, [&](std::span<std::byte> piece) {
    Request request = nullptr;
    check(mpi_.ibcast(piece.data(), static_cast<int>(piece.size()), mpi_.byte, root, collectives_, &request),
          "MPI_Ibcast");
    started.push_back(request);
  });
}

void Engine::start_barrier(Requests& started) {
  Request request = nullptr;
  check(mpi_.ibarrier(collectives_, &request), "MPI_Ibarrier");
  started.push_back(request);
}

}  // namespace qdelta::mpi
