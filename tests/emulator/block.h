// Runs the thread blocks of a kernel on the CPU, one after the other: every CUDA thread is a fiber, and at a barrier or
// an instruction that a warp executes together it waits for the others by letting them run.
//
// What it checks beyond values: lanes of a warp that meet in different instructions, barriers that some threads never
// reach, asynchronous copies that are read before they were waited for (they happen no earlier than the wait), and,
// with QDELTA_EMULATOR_ORDER=reverse, results that depend on the order in which threads run. What it cannot: wgmma, two
// threads that race between the same two barriers in an order that it does not try, and how long anything takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT: as CUDA's converts
};

// Of the thread that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

// Runs body() in every thread of every block.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

// The dynamic shared memory of the block that runs.
[[nodiscard]] unsigned char* dynamic_shared();

void block_barrier();
// The sum of all threads' values.
[[nodiscard]] int block_sum(int value);

// Instructions that a warp executes together; lanes must agree on `name`. Every lane gives `bytes` of data, and gets
// the address of all lanes' data, lane after lane, which holds until its next such instruction. Lanes that have left
// the kernel give zeros.
[[nodiscard]] const unsigned char* warp_exchange(const char* name, const void* data, std::size_t bytes);
[[nodiscard]] int lane();

// Asynchronous copies of the thread that runs.
void copy_later(void* to, const void* from, bool valid);  // 16 bytes
void commit_copies();
void wait_for_copies(int newest);

}  // namespace emulator
