// SPDX-License-Identifier: MIT
#include "run/device/compute_threads.h"

#include <ATen/Parallel.h>
#include <torch/cuda.h>

#include <dlfcn.h>
#include <catch2/catch.hpp>

#include "config/kinds.h"
#include "run/device/device.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

using Catch::Contains;
/// Without OMP_NUM_THREADS, which the tests are given; sets all back.
struct FreeChoice {
  FreeChoice() { ::unsetenv("OMP_NUM_THREADS"); }
  ~FreeChoice() {
    ::setenv("OMP_NUM_THREADS", given.c_str(), 1);
    at::set_num_threads(threads);
  }
  const std::string given = std::getenv("OMP_NUM_THREADS") ? std::getenv("OMP_NUM_THREADS") : "1";
  const int threads = at::get_num_threads();
};

template <auto parse>
PassWork work_of(const std::string& path, const std::string& more = "") {
  ReadOptions options;
  if (!more.empty()) options.overrides = {more};
  return pass_work(load_config<parse>(DALLE2_SOURCE_DIR "/" + path, options));
}

TEST_CASE("a process may use its share of the cores, the quota and what Slurm gives") {
  CHECK(allowed_threads({.cores = 8}) == 8);
  CHECK(allowed_threads({.cores = 8, .processes = 3}) == 2);
  CHECK(allowed_threads({.cores = 2, .processes = 4}) == 1);
  CHECK(allowed_threads({.cores = 8, .quota = 3.5}) == 3);
  CHECK(allowed_threads({.cores = 8, .quota = 0.5}) == 1);
  CHECK(allowed_threads({.cores = 8, .quota = 6, .processes = 2}) == 3);
  CHECK(allowed_threads({.cores = 64, .per_task = 4}) == 4);
  CHECK(allowed_threads({.cores = 64, .on_node = 16, .processes = 4}) == 4);
  // srun binds each process to cores of its own: they are not divided again.
  CHECK(allowed_threads({.cores = 8, .on_node = 32, .processes = 4, .is_bound = true}) == 8);
  CHECK(allowed_threads({.cores = 32, .on_node = 32, .processes = 4, .is_bound = true}) == 8);
  // All tasks in one: --nproc-per-node in a job of one task.
  CHECK(allowed_threads({.cores = 32, .per_task = 32, .on_node = 32, .processes = 4}) == 8);
}

TEST_CASE("small operations get one thread, OMP_NUM_THREADS has the last word") {
  const FreeChoice free;
  choose_threads({}, {0.9 * kWorkOfSeveralThreads});
  CHECK(at::get_num_threads() == 1);
  choose_threads({}, {1.1 * kWorkOfSeveralThreads});
  const int most = at::get_num_threads();
  CHECK(most >= 1);
  choose_threads({}, {1, /*samples=*/most});
  CHECK(at::get_num_threads() == most);
  choose_threads({});
  CHECK(at::get_num_threads() == most);
  World crowded;
  crowded.local_size = 1000;
  choose_threads(crowded, {1e15});
  CHECK(at::get_num_threads() == 1);
  at::set_num_threads(3);
  ::setenv("OMP_NUM_THREADS", "3", 1);
  choose_threads({}, {1});
  CHECK(at::get_num_threads() == 3);
}

TEST_CASE("the work of a step follows from the config, and so do its lanes") {
  const PassWork quickstart = work_of<parse_decoder_config>("configs/quickstart.json");
  CHECK(work_of<parse_decoder_config>("tests/bench/step/laion32.json").multiply_adds >
        kWorkOfSeveralThreads);
  CHECK(work_of<parse_decoder_config>("tests/bench/step/a32.json").multiply_adds >
        kWorkOfSeveralThreads);
  // 3 levels with 1 block of 2 convolutions, down and up: the same work in each; 16 pictures.
  CHECK(quickstart.multiply_adds == 3 * 4 * 9.0 * 16 * 16 * 16 * 16 * 16);
  CHECK(quickstart.samples == 16);
  const PassWork chunks =
      work_of<parse_decoder_config>("configs/quickstart.json", "/train/max_batch_size=4");
  CHECK(chunks.multiply_adds == quickstart.multiply_adds / 4);
  CHECK(chunks.samples == 4);
  CHECK(work_of<parse_prior_config>("configs/prior.json").multiply_adds > 0);
  CHECK(work_of<parse_clip_config>("configs/clip.json").multiply_adds > 0);
  const PassWork vae = work_of<parse_vae_config>("configs/vae.json");
  CHECK(vae.multiply_adds > 0);
  CHECK(vae.samples == 1);
}

/// The difference, and the number of threads that a resumed run computes with.
std::pair<std::string, int64_t> resumed(const ComputedWith& saved,
                                        ComputedWith now,
                                        int64_t allowed,
                                        bool is_given = false) {
  std::string difference = difference_of_resume(saved, now, allowed, is_given);
  return {difference, now.threads};
}

TEST_CASE("a resumed run computes with as many threads as before, or says why it does not") {
  using Result = std::pair<std::string, int64_t>;
  const ComputedWith saved = {4, "A with AVX2"};
  CHECK(resumed(saved, saved, 8) == Result("", 4));
  CHECK(resumed(saved, {8, "A with AVX2"}, 8) == Result("", 4));
  CHECK(resumed(saved, {1, "A with AVX2"}, 4) == Result("", 4));
  CHECK(resumed(saved, {2, "A with AVX2"}, 2) ==
        Result("it was trained with 4 threads, and this process may use 2 cores", 2));
  CHECK(resumed(saved, {1, "A with AVX2"}, 8, true) ==
        Result("it was trained with 4 threads, and OMP_NUM_THREADS is 1", 1));
  CHECK(resumed(saved, saved, 2, true) == Result("", 4));
  CHECK(resumed(saved, {4, "B with AVX512"}, 8) ==
        Result("it was trained on a A with AVX2, and this is a B with AVX512", 4));
  CHECK(
      resumed(saved, {1, "B"}, 1) ==
      Result(
          "it was trained with 4 threads, and this process may use 1 core; on a A with AVX2, and this "
          "is a B",
          1));
  CHECK(resumed({-3, "A"}, {2, "A"}, 2) == Result("", 2));  // what a file says is not trusted
}

TEST_CASE("cores are busy where the threads wait for them, until they hardly do") {
  CHECK_FALSE(cores_are_busy(false, {10, 1}, {20, 2.5}));
  CHECK(cores_are_busy(false, {10, 1}, {20, 3.5}));
  CHECK(cores_are_busy(true, {10, 1}, {20, 2.5}));
  CHECK_FALSE(cores_are_busy(true, {10, 1}, {20, 1.5}));
  CHECK_FALSE(cores_are_busy(false, {10, 1}, {9, 2}));  // a thread has ended
  CHECK_FALSE(cores_are_busy(false, {}, {}));
}

/// The quota of a machine with these files.
double quota_of(const std::map<std::string, std::string>& files) {
  const test::TempDir root;
  for (const auto& [name, content] : files) {
    const std::filesystem::path path = std::filesystem::path(root.path()) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  return core_quota(root.path());
}

TEST_CASE("the quota of cores is the least of the groups of the process, in both versions") {
  CHECK(quota_of({}) == 0);
  const std::string v2 = "sys/fs/cgroup/", v1 = "sys/fs/cgroup/cpu,cpuacct/";
  CHECK(quota_of({{"proc/self/cgroup", "0::/a/b\n"},
                  {v2 + "a/b/cpu.max", "max 100000\n"},
                  {v2 + "a/cpu.max", "350000 100000\n"}}) == 3.5);
  CHECK(quota_of({{"proc/self/cgroup", "0::/a/b\n"},
                  {v2 + "a/b/cpu.max", "50000 100000\n"},
                  {v2 + "other/cpu.max", "10000 100000\n"},
                  {v2 + "a/cpu.max", "350000 100000\n"}}) == 0.5);
  // A container that shows its own group as the topmost, and one whose path leads out of what it sees.
  CHECK(quota_of({{"proc/self/cgroup", "0::/docker/0123\n"}, {v2 + "cpu.max", "200000 100000"}}) ==
        2);
  CHECK(quota_of({{"proc/self/cgroup", "0::/../x\n"}, {v2 + "cpu.max", "200000 100000"}}) == 2);
  CHECK(quota_of({{"proc/self/cgroup", "9:memory:/m\n4:cpu,cpuacct:/a/b\n0::/\n"},
                  {v1 + "a/b/cpu.cfs_quota_us", "-1"},
                  {v1 + "a/b/cpu.cfs_period_us", "100000"},
                  {v1 + "a/cpu.cfs_quota_us", "150000"},
                  {v1 + "a/cpu.cfs_period_us", "100000"},
                  {"sys/fs/cgroup/memory/m/cpu.cfs_quota_us", "1000"},
                  {"sys/fs/cgroup/memory/m/cpu.cfs_period_us", "100000"}}) == 1.5);
  CHECK(quota_of({{"proc/self/cgroup", "4:cpuset:/\n5:cpu:/\nnot a group\n"},
                  {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000"},
                  {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}}) == 4);
  CHECK(quota_of({{"proc/self/cgroup", "0::/\n"}, {v2 + "cpu.max", "nonsense"}}) == 0);
}

TEST_CASE("the times of the threads are those of all that the process has") {
  const test::TempDir folder;
  for (const char* thread : {"1", "2", "3"})
    std::filesystem::create_directory(std::filesystem::path(folder.path()) / thread);
  std::ofstream(folder.path() + "/1/schedstat") << "2000000000 500000000 7";
  std::ofstream(folder.path() + "/2/schedstat") << "1000000000 250000000 7";
  const CoreTimes times = core_times(folder.path());
  CHECK(times.ran == Approx(3));
  CHECK(times.waited == Approx(0.75));
  CHECK(core_times(folder.path() + "/none").ran == 0);
}

/// A library that can be loaded, as it is loaded already.
std::filesystem::path path_of_c10() {
  Dl_info info{};
  REQUIRE(dladdr(reinterpret_cast<const void*>(&c10::DeviceTypeName), &info) != 0);
  return std::filesystem::canonical(info.dli_fname);
}

TEST_CASE("libtorch_cuda.so is loaded from the folder that is given, or it is said why not") {
  const test::TempDir folder;
  const std::string library = folder / "libtorch_cuda.so";
  CHECK(load_cuda_library(folder.path(), true) ==
        "this LibTorch is only for the CPU, without CUDA (" + library + " is absent)");
  std::ofstream(library) << "not a library";
  CHECK_THAT(load_cuda_library(folder.path(), true),
             Contains("cannot be loaded: ") && Contains("libtorch_cuda.so"));
  std::filesystem::remove(library);
  std::filesystem::create_symlink(path_of_c10(), library);
  CHECK_THAT(load_cuda_library(folder.path(), false), Contains("no NVIDIA driver"));
  CHECK(load_cuda_library(folder.path(), true).empty());
}

TEST_CASE("without a GPU cuda falls back to the CPU with a line, or is refused") {
  CHECK(choose_device("cpu", "/train/device", WithoutGpu::kError).is_cpu());
  if (torch::cuda::is_available()) return;
  test::CapturedLog log;
  CHECK(choose_device("cuda:3", "/train/device", WithoutGpu::kWarn).is_cpu());
  REQUIRE(log.lines().size() == 1);
  CHECK(log.lines()[0].level == LogLevel::kWarning);
  CHECK(
      log.lines()[0].text ==
      "there is no usable GPU: " + cuda_text() +
          ". This runs on the CPU, although /train/device is \"cuda:3\"; set it to \"cpu\" if that "
          "is what you want");
  CHECK(choose_device("cuda:3", "/train/device", WithoutGpu::kQuiet).is_cpu());
  CHECK(log.lines().size() == 1);
  CHECK_THROWS_WITH(choose_device("cuda", "--device", WithoutGpu::kError),
                    "--device: \"cuda\" was requested, but no CUDA device was found: " +
                        cuda_text() + "\n  Use --device cpu, which is slower.");
  CHECK_THROWS_WITH(choose_device("cuda", "/train/device", WithoutGpu::kError),
                    Contains("\n  Set it to \"cpu\" to train on the CPU."));
}

}  // namespace
}  // namespace dalle2
