#include "distributed/single.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "distributed/open.h"
#include "files.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

TEST(Single, LeavesSumsAsTheyAre) {
  const auto single = open_single();
  EXPECT_EQ(single->rank(), 0);
  EXPECT_EQ(single->size(), 1);
  EXPECT_EQ(single->local_rank(), 0);
  EXPECT_EQ(single->local_size(), 1);
  single->barrier();
  std::vector<float> floats{1, 2, 3};
  std::vector<double> doubles{4};
  std::vector<std::int64_t> integers{5, 6};
  single->all_reduce(Device{}, floats, Reduction::sum);
  single->all_reduce(Device{}, doubles, Reduction::max);
  single->all_reduce(Device{}, integers, Reduction::sum);
  single->broadcast(Device{}, std::as_writable_bytes(std::span(doubles)), 0);
  EXPECT_EQ(floats, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(doubles, std::vector<double>{4});
  EXPECT_EQ(integers, (std::vector<std::int64_t>{5, 6}));
}

TEST(Single, CopiesShards) {
  const auto single = open_single();
  const std::vector<float> data{1, 2, 3};
  std::vector<float> shard(3);
  single->reduce_scatter_async(Device{}, data, shard).wait();
  EXPECT_EQ(shard, data);
  std::vector<float> all(3);
  single->all_gather(Device{}, std::as_bytes(std::span(shard)), std::as_writable_bytes(std::span(all)));
  EXPECT_EQ(all, data);
  single->reduce_scatter(Device{}, all, all);
  EXPECT_EQ(all, data);
}

TEST(Single, HasNobodyToTalkTo) {
  const auto single = open_single();
  std::vector<std::byte> data(4);
  for (const int peer : {0, 1}) {
    expect_error(Status::invalid_argument, {"send"}, [&] {
      single->send(Device{}, data, peer);
      return 0;
    });
  }
  single->send_recv(Device{}, data, Communicator::kNone, data, Communicator::kNone);
}

TEST(Single, AbortSaysWhy) {
  EXPECT_EXIT(open_single()->abort("the disk is full"), ::testing::ExitedWithCode(EXIT_FAILURE), "the disk is full");
}

// What launchers leave in the environment, put back afterwards.
class LaunchEnvironment : public ::testing::Test {
 protected:
  LaunchEnvironment() {
    for (const char* name : kNames) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? "" : value);
      ::unsetenv(name);
    }
  }
  ~LaunchEnvironment() override {
    for (const auto& [name, value] : before_) {
      if (value.empty()) {
        ::unsetenv(name);
      } else {
        ::setenv(name, value.c_str(), 1);
      }
    }
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }

 private:
  static constexpr std::array kNames{"OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_LOCAL_RANK",
                                     "SLURM_STEP_NUM_TASKS",
                                     "SLURM_NTASKS",
                                     "SLURM_PROCID",
                                     "SLURM_LOCALID",
                                     "PMIX_RANK",
                                     "PMI_RANK"};
  std::vector<std::pair<const char*, std::string>> before_;
};

TEST_F(LaunchEnvironment, OfOneProcess) {
  set("SLURM_NTASKS", "8");  // in a batch script, which is one process
  set("SLURM_PROCID", "0");
  EXPECT_EQ(find_launch().size, 1);
  EXPECT_EQ(open_communicator(Device{})->size(), 1);
  // The libraries are not even loaded.
  const std::string maps = read_file("/proc/self/maps");
  EXPECT_NE(maps.find("libc.so"), std::string::npos);
  EXPECT_EQ(maps.find("libmpi"), std::string::npos);
  EXPECT_EQ(maps.find("libnccl"), std::string::npos);
}

TEST_F(LaunchEnvironment, OfMpirun) {
  set("OMPI_COMM_WORLD_SIZE", "4");
  set("OMPI_COMM_WORLD_RANK", "3");
  set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
  const Launch launch = find_launch();
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.local_rank, 1);
}

TEST_F(LaunchEnvironment, OfSrun) {
  set("SLURM_STEP_NUM_TASKS", "16");
  set("SLURM_PROCID", "9");
  set("SLURM_LOCALID", "1");
  expect_error(Status::invalid_argument, {"16 processes", "srun --mpi=pmix"}, [] { return find_launch().size; });
  set("PMIX_RANK", "9");
  const Launch launch = find_launch();
  EXPECT_EQ(launch.size, 16);
  EXPECT_EQ(launch.rank, 9);
  EXPECT_EQ(launch.local_rank, 1);
}

TEST_F(LaunchEnvironment, ThatIsNotANumber) {
  set("OMPI_COMM_WORLD_SIZE", "many");
  expect_error(Status::invalid_argument, {"OMPI_COMM_WORLD_SIZE=many"}, [] { return find_launch().size; });
}

TEST(Transports, NcclNeedsAGpu) {
  expect_error(Status::invalid_argument, {"NCCL"}, [] { return open_communicator(Device{}, Transport::nccl); });
}

}  // namespace
}  // namespace qdelta::testing
