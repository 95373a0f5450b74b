// SPDX-License-Identifier: MIT
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "base/library_versions.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/version.h"
#include "config/resume_changes.h"
#include "dist/failure_file.h"
#include "dist/process_group.h"
#include "dist/rank_launcher.h"
#include "dist/world.h"
#include "io/library_versions.h"
#include "net/library_versions.h"
#include "run/commands.h"
#include "run/cuda_library.h"
#include "run/kinds.h"
#include "run/model_weights.h"

namespace dalle2 {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = __VERSION__;  // "Clang 14.0.6"
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

/// @param cuda_line what is said of LibTorch's CUDA half
std::string version_text(const std::string& cuda_line) {
  return fmt::format("dalle2-train {} (LibTorch {})\n  {}\n  {}, {}\n  {}\n  compiled by {}",
                     program_version(),
                     TORCH_VERSION,
                     cuda_line,
                     base_library_versions(),
                     net_library_versions(),
                     io_library_versions(),
                     kCompiler);
}

}  // namespace

std::string program_version_text() {
  return version_text(cuda_library_text(cuda_library()));
}

namespace {

ExitCode stopped_before_the_start(int64_t signal) {
  log_info("train",
           "signal {}: stopped before the first step: nothing was trained, so nothing was saved (a "
           "checkpoint of an earlier run is as it was); run the same command again",
           signal);
  return ExitCode::kStopped;
}

/// Ranks of different configs would train what nobody asked for, or wait for each other in vain.
/// @param device of the config: only a GPU's name asks for LibTorch's CUDA half, which it loads
/// @throws ConfigError on all ranks, naming what differs
void check_same_config(ProcessGroup& group,
                       const std::string& full_json,
                       const std::string& device) {
  if (group.is_alone()) return;
  const std::string version = device == "cpu" ? version_text("CPU") : program_version_text();
  const auto digest = static_cast<int64_t>(std::hash<std::string>{}(version + full_json));
  const auto digests = group.exchange({digest}, "digest of the config");
  if (std::count(digests.begin(), digests.end(), digests.front()) == group.size()) return;
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

/// A signal before there is anything to save; afterwards the run answers it itself.
ExitCode train(const TrainCommand& command, const LoadedRun& loaded, ProcessGroup& group) {
  check_same_config(group, loaded.full_json, loaded.train->device);
  std::unique_ptr<TrainingRun> run;
  // A signal breaks the opening off on the rank that got it: the others hear of it afterwards.
  int64_t stopped_by = group.most(stop_requested(), "stop before the start");
  if (stopped_by == 0) {
    const ProcessGroup::BusyScope busy(group, "opening the data");
    try {
      run = loaded.make_run({.quiet = command.quiet, .group = &group});
      if (command.clear_results) run->clear_results();
      run->open();
    } catch (const StoppedError&) {
      stopped_by = stop_requested();
    }
  }
  stopped_by = group.most(stopped_by, "stop while the data was opened");
  if (stopped_by != 0) return stopped_before_the_start(stopped_by);
  ExitCode code = ExitCode::kDone;
  try {
    code = run->run();
  } catch (const StoppedError&) {
    return stopped_before_the_start(group.heard_stop());
  }
  try {
    check_stdout();
  } catch (const ResourceError& error) {  // the files of the run are what counts
    log_warning("train", "{}: lines of this log are lost, log.jsonl has its numbers", error.what());
  }
  return code;
}

/// Where the tensors of a group are. A device that is not there is told by the run itself.
at::Device group_device(const SharedTrainConfig& train, const World& world) {
  return world.is_alone() ? at::Device(at::kCPU) : prepare_device(train, world);
}

void tell(const std::vector<std::string>& config_warnings) {
  for (const std::string& warning : config_warnings) log_warning("config", "{}", warning);
}

/// Several processes: what ends one ends all, and each says why.
ExitCode train_together(const TrainCommand& command, const LoadedRun& loaded) {
  const World world = world_from_environment();
  if (world.is_main()) {
    tell(loaded.warnings);
  } else {
    set_least_log_level(LogLevel::kWarning);
  }
  const SharedTrainConfig& config = *loaded.train;
  std::optional<ProcessGroup> group;
  try {
    group.emplace(world,
                  GroupOptions{.device = group_device(config, world),
                               .hang_timeout = std::chrono::seconds(config.hang_timeout_seconds)});
    return train(command, loaded, *group);
  } catch (const StoppedError&) {
    if (group) throw;
    return stopped_before_the_start(stop_requested());
  } catch (const std::exception& error) {
    if (group) group->tell_failure(error.what());
    write_failure_file(world, error.what());
    throw;
  }
}

/// The same command without --nproc-per-node, as each of the processes.
ExitCode launch(const TrainCommand& command) {
  std::vector<std::string> arguments;
  std::ifstream own("/proc/self/cmdline", std::ios::binary);
  for (std::string each; std::getline(own, each, '\0');) {
    if (each == "--nproc-per-node") {
      std::getline(own, each, '\0');
    } else if (!each.starts_with("--nproc-per-node=")) {
      arguments.push_back(each);
    }
  }
  return launch_ranks({.processes = command.processes, .command = std::move(arguments)});
}

/// What the command asks of a config of any kind.
ExitCode answer(const TrainCommand& command, const LoadedRun& loaded) {
  if (command.dump_config) {
    std::printf("%s\n", loaded.full_json.c_str());
    check_stdout();
    return ExitCode::kDone;
  }
  if (command.processes > 1 && (command.dry_run || has_given_place())) {
    throw ConfigError(
        "--nproc-per-node: {}\n  Leave it away.",
        command.dry_run
            ? "a dry run is that of one process"
            : "RANK or WORLD_SIZE is set, so that another program starts the processes already");
  }
  if (!command.dry_run) {
    return command.processes > 1 ? launch(command) : train_together(command, loaded);
  }
  uninstall_stop_signals();  // there is nothing to save
  tell(loaded.warnings);
  loaded.dry_run();
  check_stdout();
  return ExitCode::kDone;
}

}  // namespace

ExitCode run_train(const TrainCommand& command) {
  std::error_code ignored;
  if (!std::filesystem::exists(command.config_path, ignored)) {
    throw ConfigError("{}: no such file (--config, relative to {})",
                      command.config_path,
                      std::filesystem::current_path().string());
  }
  const ReadOptions options =
      with_checkpoints({.overrides = command.overrides, .strict = command.strict});
  const RunKind& kind = run_kind_of(config_kind(command.config_path));
  if (command.clear_results && !kind.has_results) {
    throw ConfigError(
        "--clear-results: has no effect on {}, which is of a {}: only a VAE has a folder of results\n"
        "  Leave it away.",
        command.config_path,
        kind.key);
  }
  return answer(command, kind.load(command.config_path, options));
}

}  // namespace dalle2
