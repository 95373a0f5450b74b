// SPDX-License-Identifier: MIT
#include "run/commands/several_processes.h"

#include <c10/util/Logging.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/log.h"
#include "base/stop_signal.h"
#include "config/resume_changes.h"
#include "dist/rank_launcher.h"
#include "dist/world.h"
#include "run/commands.h"
#include "run/device/device.h"
#include "run/loop/run_session.h"

namespace dalle2 {

ExitCode stopped_before_the_start(int64_t signal) {
  log_info("train",
           "{}: stopped before the first step: nothing was trained, so nothing was saved (a "
           "checkpoint of an earlier run is as it was); run the same command again",
           signal_name(static_cast<int>(signal)));
  return ExitCode::kStopped;
}

void check_same_config(ProcessGroup& group,
                       const std::string& full_json,
                       const std::string& device) {
  if (group.is_alone()) return;
  const std::string version = program_version_text(device);
  const auto digest = static_cast<int64_t>(std::hash<std::string>{}(version + full_json));
  const auto digests = group.exchange({digest}, "digest of the config");
  if (std::ranges::count(digests, digests.front()) == group.size()) return;
  const std::vector<std::string> versions = group.gather_texts(version, "versions");
  const std::vector<std::string> configs = group.gather_texts(full_json, "configs");
  for (size_t rank = 1; rank < configs.size(); ++rank) {
    if (versions[rank] != versions.front()) {
      throw ConfigError(
          "rank {} is another program than rank 0:\n  {}\n  rank 0: {}\n  Install the same on all "
          "machines.",
          rank,
          versions[rank],
          versions.front());
    }
    const ConfigNames names = {.saved = "rank 0", .current = fmt::format("rank {}", rank)};
    ConfigChanges changes = compare_for_resume(configs.front(), configs[rank], names);
    changes.meaning.insert(changes.meaning.end(), changes.other.begin(), changes.other.end());
    if (changes.meaning.empty()) continue;  // the places of the run's own files
    throw ConfigError(
        "rank {} was started with another config than rank 0:\n  {}\n  Start all ranks with the "
        "same file and the same options.",
        rank,
        fmt::join(changes.meaning, "\n  "));
  }
}

Meeting meeting_of(const SharedTrainConfig& config,
                   const PassWork& work,
                   const std::vector<std::string>& warnings) {
  return {.work = work,
          .warnings = warnings,
          .hang_timeout = std::chrono::seconds(config.hang_timeout_seconds),
          .device_of = [&config](const World& world) { return prepare_device(config, world); }};
}

Meeting meeting_of(const std::string& device) {
  return {.device_of = [device](const World& world) {
    return device_of_rank(device, "--device", WithoutGpu::kError, world);
  }};
}

ExitCode as_one_of_several(const Meeting& meeting,
                           const std::function<ExitCode(ProcessGroup&)>& part) {
  const World world = world_from_environment();
  if (!world.is_main()) set_least_log_level(LogLevel::kWarning);
  for (const std::string& warning : meeting.warnings) {
    if (world.is_main()) log_warning("config", "{}", warning);
  }
  choose_threads(world, meeting.work);
  const CoreWatch watch(/*tells=*/world.is_main());
  std::optional<ProcessGroup> group;
  // LibTorch's warnings of a lost connection are pages of stack frames, and the watch reports the loss.
  constexpr int kErrors = 2;
  if (!world.is_alone() && std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr)
    FLAGS_caffe2_log_level = kErrors;
  try {
    const at::Device device = world.is_alone() ? at::Device(at::kCPU) : meeting.device_of(world);
    group.emplace(world,
                  GroupOptions{.device = device,
                               .device_id = device.is_cuda() ? gpu_uuid(device.index()) : "",
                               .hang_timeout = meeting.hang_timeout});
    return part(*group);
  } catch (const StoppedError&) {
    if (group) throw;
    return stopped_before_the_start(stop_requested());
  } catch (const std::exception& error) {
    if (group) group->tell_failure(error.what());
    write_failure_file(world, error.what());
    throw;
  }
}

ExitCode launch(int64_t processes) {
  if (has_given_place()) {
    throw ConfigError(
        "--nproc-per-node: RANK or WORLD_SIZE is set, so another program already starts the "
        "processes\n  Leave it out.");
  }
  std::vector<std::string> arguments;
  std::ifstream own("/proc/self/cmdline", std::ios::binary);
  for (std::string each; std::getline(own, each, '\0');) {
    if (each == "--nproc-per-node") {
      std::getline(own, each, '\0');
    } else if (!each.starts_with("--nproc-per-node=")) {
      arguments.push_back(each);
    }
  }
  return launch_ranks(processes, arguments);
}

}  // namespace dalle2
