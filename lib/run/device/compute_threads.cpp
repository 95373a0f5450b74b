// SPDX-License-Identifier: MIT
#include "run/device/compute_threads.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <vector>

#include "base/log.h"
#include "base/text.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Two convolutions a block, on the way down and on the way up.
double of_blocks(int64_t blocks, int64_t width, int64_t side) {
  const auto values = static_cast<double>(width * side);
  return 2 * 2 * 9 * static_cast<double>(blocks) * values * values;
}

/// Four matrices of attention, and two that widen to four times the width and back.
double of_layers(int64_t layers, int64_t width, int64_t tokens) {
  return 12 * static_cast<double>(layers * tokens) * static_cast<double>(width * width);
}

int64_t number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::max<int64_t>(0, std::atoll(text));
}

bool threads_are_given() {
  return number_of("OMP_NUM_THREADS") > 0;
}

/// @return 0 where it is not known
int64_t allowed_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

int64_t allowed_here(const World& world) {
  static const int64_t of_libtorch = at::get_num_threads();  // before anybody has set it
  const int64_t cores = allowed_cores();
  return allowed_threads({.cores = cores > 0 ? std::min(cores, of_libtorch) : of_libtorch,
                          .quota = core_quota(),
                          .per_task = number_of("SLURM_CPUS_PER_TASK"),
                          .on_node = number_of("SLURM_CPUS_ON_NODE"),
                          .processes = world.local_size,
                          .is_bound = world.launcher == Launcher::kSlurm});
}

/// That of all threads of this process which compute.
std::atomic<int64_t> threads_now = 1;

void set_threads(int64_t threads) {
  at::set_num_threads(static_cast<int>(threads));
  threads_now = threads;
}

/// "Intel(R) Xeon(R) Processor", as /proc/cpuinfo has it; empty where it does not.
std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

double core_quota(const fs::path& root) {
  double least = 0;
  const auto look_at = [&](const fs::path& group) {
    double quota = 0, period = 0;  // of a period, both in microseconds; "max" or -1 is no limit
    std::ifstream both(group / "cpu.max");
    if (!(both >> quota >> period) && !(std::ifstream(group / "cpu.cfs_quota_us") >> quota &&
                                        std::ifstream(group / "cpu.cfs_period_us") >> period)) {
      return;
    }
    if (quota <= 0 || period <= 0) return;
    least = least == 0 ? quota / period : std::min(least, quota / period);
  };
  std::ifstream groups(root / "proc/self/cgroup");
  // Version 1: "4:cpu,cpuacct:/path"; version 2: "0::/path". A container may show its own group as the topmost.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(":/", first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_first_version = !controllers.empty();
    if (is_first_version && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    for (const char* mount : {controllers.c_str(), is_first_version ? "cpu" : "unified"}) {
      const fs::path top = root / "sys/fs/cgroup" / mount;
      look_at(top);
      for (fs::path group = line.substr(second + 2); !group.empty(); group = group.parent_path()) {
        look_at(top / group);
      }
    }
  }
  return least;
}

CoreTimes core_times(const fs::path& threads) {
  CoreTimes times;
  std::error_code ignored;
  for (fs::directory_iterator at(threads, ignored), end; at != end; at.increment(ignored)) {
    double ran = 0, waited = 0;  // nanoseconds; a thread may have ended meanwhile
    if (!(std::ifstream(at->path() / "schedstat") >> ran >> waited)) continue;
    times.ran += 1e-9 * ran;
    times.waited += 1e-9 * waited;
  }
  return times;
}

double sample_work(const LoadedDecoderConfig& loaded) {
  const auto& mask = loaded.config.train.unet_training_mask;
  double most = 0;
  for (size_t i = 0; i < loaded.plan.stages.size(); ++i) {
    if (mask && !mask->at(i)) continue;
    const UnetPlan& stage = loaded.plan.stages[i];
    const UnetConfig& unet = stage.unet;
    int64_t side = stage.map_side(stage.random_crop_size.value_or(stage.image_size));
    double work = 0;
    for (size_t level = 0; level < unet.dim_mults.size(); ++level) {
      if (level > 0 || unet.memory_efficient) side /= 2;
      work += of_blocks(unet.num_resnet_blocks.at(level), unet.dim * unet.dim_mults[level], side);
    }
    most = std::max(most, work);
  }
  return most;
}

double sample_work(const LoadedPriorConfig& loaded) {
  const PriorNetworkConfig& net = loaded.config.prior.net;
  const int64_t text = loaded.config.prior.condition_on_text_encodings ? net.text_len() : 0;
  return of_layers(net.depth, net.dim, text + net.num_text_embeds + net.num_image_embeds + 2);
}

double sample_work(const LoadedVaeConfig& loaded) {
  const VaeConfig& vae = loaded.config.vae;
  int64_t side = loaded.config.data.image_size;
  const int64_t grid = side / vae.reduction();
  if (vae.is_vit()) return 2 * of_layers(vae.layers, vae.dim, grid * grid);
  double work = 0;
  for (int64_t layer = 0; layer < vae.layers; ++layer) {
    const auto& mults = vae.encdec_layer_mults;
    side /= 2;
    work += of_blocks(
        1, vae.dim * (mults ? mults->at(static_cast<size_t>(layer)) : int64_t{1} << layer), side);
  }
  return work;
}

double sample_work(const LoadedClipConfig& loaded) {
  const ClipVisionConfig& vision = loaded.config.clip.vision_cfg;
  const ClipTextConfig& text = loaded.config.clip.text_cfg;
  const int64_t layers = vision.layers.at(0);
  // The four stages of a ResNet take about the same.
  return of_layers(text.layers, text.width, text.context_length) +
         (vision.is_resnet() ? 2 * of_blocks(layers, vision.width, vision.image_size / 4)
                             : of_layers(layers, vision.width, vision.grid() * vision.grid()));
}

int64_t allowed_threads(const CoreLimits& limits) {
  int64_t least = limits.is_bound ? limits.cores : limits.cores / limits.processes;
  if (limits.quota > 0) {
    least = std::min(least, static_cast<int64_t>(limits.quota) / limits.processes);
  }
  if (limits.on_node > 0) least = std::min(least, limits.on_node / limits.processes);
  if (limits.per_task > 0) least = std::min(least, limits.per_task);
  return std::max<int64_t>(1, least);
}

void choose_threads(const World& world, const PassWork& work) {
  const int64_t allowed = allowed_here(world);
  const bool is_little = work.multiply_adds > 0 && work.multiply_adds < kWorkOfSeveralThreads &&
                         work.samples < allowed;
  if (threads_are_given()) {
    threads_now = at::get_num_threads();
  } else {
    set_threads(is_little ? 1 : allowed);
  }
}

ComputedWith computing_with() {
  return {.threads = at::get_num_threads(),
          .processor = fmt::format("{} with {}", processor_name(), at::get_cpu_capability())};
}

std::string difference_of_resume(const ComputedWith& saved,
                                 ComputedWith& now,
                                 int64_t allowed,
                                 bool is_given) {
  std::vector<std::string> differences;
  if (saved.threads != now.threads && saved.threads > 0) {
    if (!is_given && saved.threads <= allowed) {
      now.threads = saved.threads;
    } else {
      differences.push_back(fmt::format("with {}, and {}",
                                        counted(saved.threads, "thread"),
                                        is_given
                                            ? fmt::format("OMP_NUM_THREADS is {}", now.threads)
                                            : "this process may use " + counted(allowed, "core")));
    }
  }
  if (saved.processor != now.processor) {
    differences.push_back(fmt::format("on a {}, and this is a {}", saved.processor, now.processor));
  }
  if (differences.empty()) return "";
  return fmt::format("it was trained {}", fmt::join(differences, "; "));
}

std::string resume_threads(const ComputedWith& saved, const World& world) {
  ComputedWith now = computing_with();
  const int64_t chosen = now.threads;
  const std::string difference =
      difference_of_resume(saved, now, allowed_here(world), threads_are_given());
  if (now.threads != chosen) {
    set_threads(now.threads);
    log_info(
        "ckpt", "computing with {} again, as the run has so far", counted(now.threads, "thread"));
  }
  return difference;
}

bool cores_are_busy(bool were_busy, const CoreTimes& before, const CoreTimes& now) {
  const double ran = now.ran - before.ran, waited = now.waited - before.waited;
  return waited > (were_busy ? 0.1 : 0.2) * ran && ran > 0;  // what has ended is no longer counted
}

CoreWatch::CoreWatch(bool tells)
    : watcher_([this, tells] {
        try {
          watch(tells);
        } catch (const std::system_error&) {  // no further thread can be had: they wait as ever
        }
      }) {}

CoreWatch::~CoreWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void CoreWatch::watch(bool tells) {
  constexpr std::chrono::milliseconds kInterval{500};
  constexpr int kLooksOfTheLine = 40;  // 20 s
  CoreTimes last = core_times(), first = last;
  for (int looks = 1;; ++looks) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kInterval, [this] { return ends_; })) break;
    }
    const CoreTimes now = core_times();
    sleep_at_once(cores_are_busy(sleeps_, last, now));
    last = now;
    if (looks % kLooksOfTheLine != 0) continue;
    const double ran = now.ran - first.ran, waited = now.waited - first.waited;
    first = now;
    if (!tells || ran <= 0 || waited <= ran / 2) continue;
    tells = false;
    log_warning(
        "train",
        "the threads waited for a core {:.1f} times as long as they ran: other programs use the cores, or a "
        "quota allows fewer\n  Give this program cores of its own. If that is not possible, OMP_NUM_THREADS=1 "
        "or a smaller data.num_workers may be faster; another number of compute threads changes the last bits "
        "of the results.",
        waited / ran);
  }
  sleep_at_once(false);
}

/// While libgomp has more threads than the process has cores, none of them spins for more than a moment (GOMP_SPINCOUNT in its
/// manual). Those that another thread has started count: they sleep until it ends.
void CoreWatch::sleep_at_once(bool yes) {
  if (yes == sleeps_ || (yes && threads_now < 2)) return;
  for (const char* of_user : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    if (std::getenv(of_user) != nullptr) return;
  }
  const int64_t more = std::max<int64_t>(2, allowed_cores() - threads_now + 2);
  constexpr int64_t kMost = 32;  // of a small share of a large machine
  if (more > kMost) return;
  {
    const std::lock_guard lock(mutex_);
    sleeps_ = yes;
  }
  changed_.notify_all();
  if (surplus_.joinable()) surplus_.join();
  if (!yes) return;
  surplus_ = std::thread([this, more] {
    std::atomic<int64_t> started = 0;  // keeps the region in the program
#pragma omp parallel num_threads(static_cast <int>(more))
    ++started;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !sleeps_; });
  });
}

}  // namespace dalle2
