// Runs the thread blocks of a kernel on the CPU, one after the other (those of a cluster together): every CUDA thread
// is a fiber, and at a barrier or an instruction that a warp executes together it waits for the others by letting them
// run.
//
// What it checks beyond values: lanes of a warp that meet in different instructions, barriers that some threads never
// reach, operands of wgmma and of the copy engine at addresses that it cannot take, copies that nobody waits for, and
// asynchronous work that is used before it was waited for. That is done at once (except cp.async, which is done at the
// wait) or, with QDELTA_EMULATOR_ORDER=reverse, as late as possible; threads then run in the reverse order too, so that
// results that depend on either are seen. What it cannot: fences, two threads that race between the same two barriers
// in an order that it does not try, and how long anything takes.
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

// Runs body() in every thread of every block, so many blocks along x being a cluster. What is __shared__ exists once:
// kernels with clusters may have dynamic shared memory only.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, unsigned cluster, const std::function<void()>& body);

// The dynamic shared memory of the block that runs, and what another one of its cluster has in the place of `own`.
[[nodiscard]] unsigned char* dynamic_shared();
[[nodiscard]] const void* in_block(const void* own, int block);

void block_barrier();
void cluster_barrier();
// Of so many threads of the block.
void named_barrier(int name, int threads);
// The sum of all threads' values.
[[nodiscard]] int block_sum(int value);

// Instructions that a warp executes together; lanes must agree on `name`. Every lane gives `bytes` of data, and gets
// the address of all lanes' data, lane after lane, which holds until its next such instruction. Lanes that have left
// the kernel give zeros.
[[nodiscard]] const unsigned char* warp_exchange(const char* name, const void* data, std::size_t bytes);
[[nodiscard]] int lane();

// cp.async of the thread that runs.
void copy_later(void* to, const void* from, bool valid);  // 16 bytes
void commit_copies();
void wait_for_copies(int newest);

// wgmma: products of the thread that runs, each of them its own elements.
void multiply_later(std::function<void()> product);
void finish_products();
// Bulk copies from shared memory that the thread started.
void store_later(std::function<void()> store);
void finish_stores();

// An mbarrier, in the kernel's shared memory.
struct Mbarrier {
  std::int32_t bytes;  // that are to come in this phase
  std::uint16_t waits_for;
  std::uint8_t arrivals, parity;
};
void init(Mbarrier& barrier, int arrivals);
void arrive(Mbarrier& barrier, int bytes);
void wait(Mbarrier& barrier, int parity);
// What the copy engine does: copy() brings so many bytes.
void start_copy(Mbarrier& barrier, int bytes, std::function<void()> copy);

// Lets others run until `ready`.
void wait_until(const std::function<bool()>& ready);

// Ends the program, for what would be an error on a GPU.
[[noreturn]] void give_up(const char* why);

}  // namespace emulator
