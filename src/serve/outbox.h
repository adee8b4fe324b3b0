// Carries what is new from the engine's thread to the jobs, in a thread of its own: to wake a hundred clients takes
// longer than the engine should wait.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "serve/job.h"

namespace qdelta::serve {

class Outbox {
 public:
  struct Letter {
    std::shared_ptr<Job> job;
    Update update;
  };

  Outbox() : thread_([this] { run(); }) {}
  // Delivers what is left.
  ~Outbox() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Takes the letters away.
  void send(std::vector<Letter>& letters) {
    if (letters.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      for (Letter& letter : letters) waiting_.push_back(std::move(letter));
    }
    letters.clear();
    changed_.notify_one();
  }
  // Waits until all has been delivered.
  void flush() {
    std::unique_lock lock(mutex_);
    empty_.wait(lock, [this] { return waiting_.empty() && !delivering_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      std::vector<Letter> letters = std::exchange(waiting_, {});
      delivering_ = true;
      lock.unlock();
      for (Letter& letter : letters) letter.job->push(std::move(letter.update));
      letters.clear();
      lock.lock();
      delivering_ = false;
      empty_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_, empty_;
  std::vector<Letter> waiting_;
  bool ending_ = false, delivering_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace qdelta::serve
