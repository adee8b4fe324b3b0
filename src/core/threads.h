// One pool of threads for everything: OpenMP's, which oneDNN uses too.
#pragma once

#include <omp.h>

#include <cstdint>

namespace qdelta {

// The number of threads to use: `requested` if positive, else what OpenMP would take (cores, or OMP_NUM_THREADS).
[[nodiscard]] inline int thread_count(int requested) { return requested > 0 ? requested : omp_get_max_threads(); }

// Runs body(index, worker) for every index in [0, count); worker < threads names the thread, for its scratch space.
// Which thread takes which index is left to chance, so bodies must not let the result depend on it. Must not throw.
template <class Body>
void parallel_for(std::int64_t count, int threads, const Body& body) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  const int team = static_cast<int>(count < threads ? count : threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(team) default(none) shared(count, body)
  for (std::int64_t index = 0; index < count; ++index) body(index, omp_get_thread_num());
}

// The same with a fixed share of the indices for each thread, for work whose data should stay with one core.
template <class Body>
void parallel_for_static(std::int64_t count, int threads, const Body& body) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  const int team = static_cast<int>(count < threads ? count : threads);
#pragma omp parallel for schedule(static) num_threads(team) default(none) shared(count, body)
  for (std::int64_t index = 0; index < count; ++index) body(index, omp_get_thread_num());
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
