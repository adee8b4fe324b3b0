// One pool of threads for everything, whichever thread asks. OpenMP is left to the libraries that use it (oneDNN), and
// says how many threads there should be.
//
// A loop does not need its helpers: the thread that runs it takes all that they have not taken, and waits only for
// what somebody has begun. So it hardly matters when cores are wanted by others too, as those of a server are by the
// threads that write to its clients; with a team that must be complete every loop would wait for the slowest.
#pragma once

#include <omp.h>

#include <cstdint>

namespace qdelta {

// The number of threads to use: `requested` if positive, else what OpenMP would take (cores, or OMP_NUM_THREADS).
[[nodiscard]] inline int thread_count(int requested) { return requested > 0 ? requested : omp_get_max_threads(); }

// For the two functions below.
struct ParallelLoop {
  void (*call)(const void* body, std::int64_t index, int worker) = nullptr;
  const void* body = nullptr;
  std::int64_t count = 0;
  bool shares = false;  // whether each thread has a part of the indices that it takes first
};
void run_parallel(const ParallelLoop& loop, int threads);

template <bool shares, class Body>
void parallel_for_any(std::int64_t count, int threads, const Body& body) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  const auto call = [](const void* of, std::int64_t index, int worker) {
    (*static_cast<const Body*>(of))(index, worker);
  };
  run_parallel({.call = call, .body = &body, .count = count, .shares = shares}, threads);
}

// Runs body(index, worker) for every index in [0, count); worker < threads names the thread, for its scratch space.
// Which thread takes which index is left to chance, so bodies must not let the result depend on it, nor one index wait
// for another. A loop within a body is run by the body's own thread. Must not throw.
template <class Body>
void parallel_for(std::int64_t count, int threads, const Body& body) {
  parallel_for_any<false>(count, threads, body);
}

// The same with a share of the indices for each thread, the same one each time, for work whose data should stay with
// one core. Who is done with his own helps the others.
template <class Body>
void parallel_for_static(std::int64_t count, int threads, const Body& body) {
  parallel_for_any<true>(count, threads, body);
}

// While it lives, libraries called from this thread that would start OpenMP threads of their own do not.
class SingleThreaded {
 public:
  SingleThreaded() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreaded() { omp_set_num_threads(before_); }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int before_;
};

}  // namespace qdelta
