// Checkpoints of a run: how many are kept, which is the newest, and what is said of a damaged one.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "io/safetensors.h"
#include "training_case.h"

namespace {

int fail_folder_flushes_after = -1;  // so many succeed; negative: all

}  // namespace

// In place of libc's, for the whole program: flushes of folders fail when a test says so.
extern "C" int fsync(int file) {
  struct stat info {};
  if (fail_folder_flushes_after >= 0 && ::fstat(file, &info) == 0 && S_ISDIR(info.st_mode) &&
      fail_folder_flushes_after-- == 0) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace qdelta::testing {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints() { initialise(model_.layout(), 5, model_.parameters()); }

  std::string save(std::int64_t step, int keep = 2) {
    TrainingState state;
    state.step = step;
    state.recipe = "tiny";
    return save_checkpoint(run_, model_, optimizer_, state, keep, "bytes");
  }
  TrainingState load(const std::string& folder) { return load_checkpoint(folder, model_, optimizer_); }
  // What lies in the folder of checkpoints, sorted.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(run_ + "/checkpoints")) found.push_back(entry.path().filename());
    std::ranges::sort(found);
    return found;
  }
  static std::vector<std::string> files(const std::string& folder) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path().filename());
    std::ranges::sort(found);
    return found;
  }

  using Names = std::vector<std::string>;
  TemporaryFolder folder_;
  std::string run_ = folder_.file("run");
  LanguageModel model_{tiny_config()};
  OptimizerState optimizer_{model_.layout().size};
};

TEST_F(Checkpoints, AreModelFoldersWithTheStateOfTheRun) {
  EXPECT_EQ(newest_checkpoint(run_), std::nullopt);
  const std::string folder = save(3);
  EXPECT_EQ(folder, run_ + "/checkpoints/step-00000003");
  EXPECT_EQ(files(folder), (Names{"config.json", "model.safetensors", "optimizer.safetensors", "qdelta_tokenizer.json",
                                  "state.json", "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(newest_checkpoint(run_), folder);
}

TEST_F(Checkpoints, ComeBackAsTheyWere) {
  Random random(2);
  for (float& value : optimizer_.m()) value = static_cast<float>(random.normal());
  for (float& value : optimizer_.v()) value = static_cast<float>(random.uniform());
  const TrainingState saved{.step = 41,
                            .tokens = 1LL << 40,
                            .updates = 39,
                            .data_position = 0xffff'ffff'ffff'fff0U,
                            .skipped = 2,
                            .seconds = 0.1,
                            .best_validation = 1.0 / 3,
                            .evaluations_since_best = 4,
                            .recipe = "a \"recipe\"\nof two lines"};
  const std::string folder = save_checkpoint(run_, model_, optimizer_, saved, 1, "");
  LanguageModel model(tiny_config());
  OptimizerState optimizer(model.layout().size);
  const TrainingState loaded = load_checkpoint(folder, model, optimizer);
  EXPECT_EQ(loaded.step, saved.step);
  EXPECT_EQ(loaded.tokens, saved.tokens);
  EXPECT_EQ(loaded.updates, saved.updates);
  EXPECT_EQ(optimizer.updates, saved.updates);
  EXPECT_EQ(loaded.data_position, saved.data_position);
  EXPECT_EQ(loaded.skipped, saved.skipped);
  EXPECT_EQ(loaded.seconds, saved.seconds);
  EXPECT_EQ(loaded.best_validation, saved.best_validation);
  EXPECT_EQ(loaded.evaluations_since_best, saved.evaluations_since_best);
  EXPECT_EQ(loaded.recipe, saved.recipe);
  EXPECT_TRUE(std::ranges::equal(model.parameters(), model_.parameters()));
  EXPECT_TRUE(std::ranges::equal(optimizer.m(), optimizer_.m()));
  EXPECT_TRUE(std::ranges::equal(optimizer.v(), optimizer_.v()));
}

TEST_F(Checkpoints, OnlyTheLastAreKept) {
  for (std::int64_t step = 1; step <= 5; ++step) static_cast<void>(save(step, 3));
  EXPECT_EQ(names(), (Names{"step-00000003", "step-00000004", "step-00000005"}));
  static_cast<void>(save(6, 1));
  EXPECT_EQ(names(), (Names{"step-00000006"}));
  for (const int none : {0, -1}) EXPECT_THROW(static_cast<void>(save(7, none)), Error);  // there is always one
  EXPECT_EQ(names(), (Names{"step-00000006"}));
}

TEST_F(Checkpoints, TheNewestIsByNumber) {
  static_cast<void>(save(99'999'999, 9));
  const std::string newest = save(100'000'000, 9);
  EXPECT_EQ(newest_checkpoint(run_), newest);
}

TEST_F(Checkpoints, UnfinishedOnesDoNotCountAndGoWithTheNextSave) {
  const std::string good = save(1);
  fs::create_directories(run_ + "/checkpoints/step-00000002.unfinished");
  fs::copy_file(good + "/state.json", run_ + "/checkpoints/step-00000002.unfinished/state.json");
  EXPECT_EQ(newest_checkpoint(run_), good);
  static_cast<void>(save(3));
  EXPECT_EQ(names(), (Names{"step-00000001", "step-00000003"}));
}

// Killed after its last save, while it deleted the older one.
TEST_F(Checkpoints, WhatADeletionLeftIsTidiedUp) {
  static_cast<void>(save(1, 9));
  static_cast<void>(save(2, 9));
  const std::string newest = save(3, 9);
  fs::rename(run_ + "/checkpoints/step-00000001", run_ + "/checkpoints/step-00000001.unfinished");
  tidy_checkpoints(run_, 1);
  EXPECT_EQ(names(), (Names{"step-00000003"}));
  EXPECT_EQ(load(newest).step, 3);
}

TEST_F(Checkpoints, OtherNamesAreLeftAlone) {
  const std::string good = save(1, 1);
  for (const char* name :
       {"step-", "step-x", "step-00000007b", "step--0000009", "best", "step-99999999999999999999999"}) {
    fs::create_directories(run_ + "/checkpoints/" + name);
    fs::copy_file(good + "/state.json", run_ + "/checkpoints/" + name + "/state.json");
  }
  EXPECT_EQ(newest_checkpoint(run_), good);
  static_cast<void>(save(2, 1));
  EXPECT_EQ(names().size(), 7U);
}

TEST_F(Checkpoints, TheSameStepIsReplaced) {
  static_cast<void>(save(4));
  model_.parameters()[0] = 42;
  const std::string folder = save(4);
  model_.parameters()[0] = 0;
  static_cast<void>(load(folder));
  EXPECT_EQ(model_.parameters()[0], 42);
  EXPECT_EQ(names(), (Names{"step-00000004"}));
}

TEST_F(Checkpoints, ADamagedStateIsNamed) {
  const std::string folder = save(1);
  const std::string path = folder + "/state.json";
  const nlohmann::json good = nlohmann::json::parse(read_file(path));
  for (const auto& [key, value] : good.items()) {
    if (key == "xxh3") continue;
    nlohmann::json changed = good;
    changed.erase(key);
    write_file(path, changed.dump());
    expect_error(Status::corrupt, {path, "damaged", key}, [&] { return load(folder); });
    changed[key] = key == "recipe" ? nlohmann::json(5) : nlohmann::json("text");
    write_file(path, changed.dump());
    expect_error(Status::corrupt, {path, "damaged"}, [&] { return load(folder); });
  }
  const std::string text = good.dump();
  for (const std::string& bad :
       {std::string(), text.substr(0, text.size() / 2), std::string("[]"), std::string("7"), std::string("\xff\xfe"),
        "{\"step\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}"}) {
    write_file(path, bad);
    expect_error(Status::corrupt, {path, "damaged"}, [&] { return load(folder); });
  }
  fs::remove(path);
  EXPECT_EQ(newest_checkpoint(run_), std::nullopt);
}

TEST_F(Checkpoints, NumbersThatCannotBeAreRefused) {
  const std::string folder = save(1);
  const std::string path = folder + "/state.json";
  const nlohmann::json good = nlohmann::json::parse(read_file(path));
  for (const char* key : {"step", "tokens", "updates", "skipped", "evaluations_since_best"}) {
    nlohmann::json changed = good;
    changed[key] = -1;
    write_file(path, changed.dump());
    expect_error(Status::corrupt, {path, key}, [&] { return load(folder); });
  }
}

TEST_F(Checkpoints, ADamagedOptimizerIsNamed) {
  const std::string folder = save(1);
  const std::string path = folder + "/optimizer.safetensors";
  const std::string good = read_file(path);
  const Tensor right(DType::f32, {model_.layout().size});
  const Tensor wrong(DType::f32, {model_.layout().size - 1});
  const Tensor other(DType::i32, {model_.layout().size});
  write_safetensors(path, std::vector<NamedTensor>{{"m", right.view()}, {"v", wrong.view()}});
  expect_error(Status::corrupt, {path, "'v'"}, [&] { return load(folder); });
  write_safetensors(path, std::vector<NamedTensor>{{"m", other.view()}, {"v", right.view()}});
  expect_error(Status::corrupt, {path, "'m'"}, [&] { return load(folder); });
  write_safetensors(path, std::vector<NamedTensor>{{"m", right.view()}});
  EXPECT_THROW(static_cast<void>(load(folder)), Error);
  write_file(path, good.substr(0, good.size() - 1));
  expect_error(Status::corrupt, {path}, [&] { return load(folder); });
  fs::remove(path);
  expect_error(Status::io, {path}, [&] { return load(folder); });
}

TEST_F(Checkpoints, WhatCannotBeWrittenIsNamedAndLeavesNothing) {
  const std::string good = save(1, 1);
  TrainingState state;
  state.step = 2;
  // The tokenizer is copied when the weights are written already.
  expect_error(Status::io, {"nowhere"},
               [&] { return save_checkpoint(run_, model_, optimizer_, state, 1, folder_.file("nowhere")); });
  EXPECT_EQ(names(), (Names{"step-00000001"}));
  EXPECT_EQ(load(good).step, 1);
  write_file(folder_.file("file"), "");
  const std::string bad = folder_.file("file");
  expect_error(Status::io, {bad}, [&] { return save_checkpoint(bad, model_, optimizer_, state, 1, ""); });
}

// Checkpoints of version 0.1 have no checksums.
TEST_F(Checkpoints, WithoutChecksumsTheyLoadAsEver) {
  const std::string folder = save(1);
  nlohmann::json state = nlohmann::json::parse(read_file(folder + "/state.json"));
  state.erase("xxh3");
  write_file(folder + "/state.json", state.dump());
  for (const char* name : {"/model.safetensors", "/optimizer.safetensors"}) {
    std::string file = read_file(folder + name);
    const std::string key = "\"qdelta.xxh3\":\"xxh3:";
    const std::size_t at = file.find(key);
    ASSERT_NE(at, std::string::npos);
    EXPECT_TRUE(verify_checkpoint(folder) || name[1] == 'o');
    file.replace(at, key.size() + 17, R"("somebody":"012345678901234567890123")");
    write_file(folder + name, file);
  }
  EXPECT_EQ(load(folder).step, 1);
  EXPECT_FALSE(verify_checkpoint(folder));
}

TEST_F(Checkpoints, AWrongBitAnywhereIsSeen) {
  Random random(7);
  for (float& value : optimizer_.m()) value = static_cast<float>(random.normal());
  const std::string folder = save(1);
  EXPECT_TRUE(verify_checkpoint(folder));
  for (const char* name : {"/model.safetensors", "/optimizer.safetensors", "/state.json"}) {
    const std::string good = read_file(folder + name);
    for (int i = 0; i < (quick() ? 10 : 30); ++i) {
      const auto bit = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(good.size()) * 8 - 1));
      // What stands between the words of JSON has no meaning.
      if (std::string_view(" \n").find(good[bit / 8]) != std::string_view::npos && name[1] == 's') continue;
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
      write_file(folder + name, bad);
      EXPECT_THROW(static_cast<void>(load(folder)), Error) << name << ", bit " << bit;
      EXPECT_THROW(static_cast<void>(verify_checkpoint(folder)), Error) << name << ", bit " << bit;
    }
    write_file(folder + name, good);
  }
}

class DamagedCheckpoints : public Checkpoints {
 protected:
  ResumedCheckpoint resume() {
    said_.clear();
    return load_newest_checkpoint(run_, model_, optimizer_, [&](const std::string& text) { said_ += text; });
  }
  static void damage(const std::string& path) {
    std::string file = read_file(path);
    file[file.size() / 2] = static_cast<char>(file[file.size() / 2] ^ 4);
    write_file(path, file);
  }
  std::string said_;
};

TEST_F(DamagedCheckpoints, TheOneBeforeIsTaken) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json", "config.json"}) {
    fs::remove_all(run_);
    const std::string first = save(1, 3);
    model_.parameters()[0] += 1;
    const std::string second = save(2, 3);
    const std::string third = save(3, 3);
    damage(third + "/" + name);
    fs::remove(second + "/optimizer.safetensors");
    const ResumedCheckpoint found = resume();
    EXPECT_EQ(found.folder, first);
    EXPECT_EQ(found.state.step, 1);
    for (const char* piece : {"step-00000003 is damaged", "step-00000002 is damaged", "goes on from step-00000001"}) {
      EXPECT_NE(said_.find(piece), std::string::npos) << said_;
    }
    EXPECT_NE(said_.find(third + "/" + name), std::string::npos) << said_;
    // Nobody takes them for checkpoints any more, and the one that is whole is not pushed out.
    EXPECT_EQ(names(), (Names{"step-00000001", "step-00000002.damaged", "step-00000003.damaged"}));
    EXPECT_EQ(newest_checkpoint(run_), first);
  }
}

TEST_F(DamagedCheckpoints, WhereAllAreDamagedNothingIsTouched) {
  const std::string only = save(1);
  damage(only + "/model.safetensors");
  expect_error(Status::corrupt, {only, "damaged"}, [&] { return resume(); });
  EXPECT_EQ(names(), (Names{"step-00000001"}));
  EXPECT_EQ(said_, "");
}

TEST_F(DamagedCheckpoints, WhatIsWholeIsTakenInSilence) {
  static_cast<void>(save(1));
  EXPECT_EQ(resume().folder, save(2));
  EXPECT_EQ(said_, "");
}

// The folder of checkpoints cannot be flushed: the new one may be gone after a power cut.
TEST_F(Checkpoints, AFailedFlushOfTheFolderKeepsTheOlderOne) {
  static_cast<void>(save(1, 1));
  fail_folder_flushes_after = 0;
  for (const auto& entry : fs::directory_iterator(run_ + "/checkpoints/step-00000001")) {
    if (entry.is_regular_file()) ++fail_folder_flushes_after;  // each is followed by a flush of its folder
  }
  ++fail_folder_flushes_after;  // the new folder's name
  expect_error(Status::io, {run_ + "/checkpoints", "flushed"}, [&] { return save(2, 1); });
  fail_folder_flushes_after = -1;
  EXPECT_EQ(names(), (Names{"step-00000001", "step-00000002"}));
}

}  // namespace
}  // namespace qdelta::testing
