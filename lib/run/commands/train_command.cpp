// SPDX-License-Identifier: MIT
#include <torch/version.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/log.h"
#include "base/stop_signal.h"
#include "base/this_process.h"
#include "dist/process_group.h"
#include "io/library_versions.h"
#include "net/http_stream.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"
#include "run/commands/several_processes.h"
#include "run/device/compute_threads.h"
#include "run/device/cuda_library.h"
#include "run/kinds.h"
#include "run/missing_outside.h"
#include "tracker/public_config.h"

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

std::string program_version_text(const std::string& device) {
  return version_text(device == "cpu" ? "CPU" : cuda_library_text(cuda_library()));
}

namespace {

StartOptions start_of(const TrainCommand& command) {
  return {.fresh = command.fresh, .back_to = command.back_to, .config_path = command.config_path};
}

/// A signal before there is anything to save; afterwards the run answers it itself.
ExitCode train(const TrainCommand& command, const LoadedRun& loaded, ProcessGroup& group) {
  check_same_config(group, loaded.full_json, loaded.train->device);
  // Only warnings and errors, until the run tells how it ends.
  if (command.quiet) set_least_log_level(LogLevel::kWarning);
  const auto stopped = [&](int64_t signal) {
    if (command.quiet && group.is_main()) set_least_log_level(LogLevel::kInfo);
    return stopped_before_the_start(signal);
  };
  std::unique_ptr<TrainingRun> run;
  // A signal breaks the opening off on the rank that got it: the others hear of it afterwards.
  int64_t stopped_by = group.most(stop_requested(), "stop before the start");
  if (stopped_by == 0) {
    const ProcessGroup::BusyScope busy(group, "opening the data");
    try {
      run = loaded.make_run({.quiet = command.quiet, .group = &group, .start = start_of(command)});
      run->open();
    } catch (const StoppedError&) {
      stopped_by = stop_requested();
    }
  }
  stopped_by = group.most(stopped_by, "stop while the data was opened");
  if (stopped_by != 0) return stopped(stopped_by);
  ExitCode code = ExitCode::kDone;
  try {
    run->read_examples();
    code = run->run();
  } catch (const StoppedError&) {
    return stopped(group.heard_stop());
  }
  try {
    check_stdout();
  } catch (const ResourceError& error) {  // the files of the run are what counts
    log_warning(
        "train", "{}: lines of this log are lost, but log.jsonl has the numbers", error.what());
  }
  return code;
}

/// What the command asks of a config of any kind.
ExitCode answer(const TrainCommand& command, const LoadedRun& loaded) {
  if (command.dump_config) {
    std::printf("%s\n", public_config(loaded.full_json).c_str());
    check_stdout();
    return ExitCode::kDone;
  }
  if (!command.dry_run) {
    if (command.processes > 1) return launch(command.processes);
    return as_one_of_several(*loaded.train, loaded.work, loaded.warnings, [&](ProcessGroup& group) {
      return train(command, loaded, group);
    });
  }
  uninstall_stop_signals();  // there is nothing to save
  // LibTorch asks at its first convolution, and never again, whether it has CUDA: load that before any network is tried.
  if (loaded.train->device != "cpu") cuda_library();
  for (const std::string& warning : loaded.warnings) log_warning("config", "{}", warning);
  World world;
  world.local_size = static_cast<int>(command.processes);
  choose_threads(world, loaded.work);
  loaded.dry_run(command.processes, start_of(command));
  check_stdout();
  return ExitCode::kDone;
}

}  // namespace

/// True also if the variables of the ranks contradict each other: starting the ranks reports that.
static bool is_first_rank() {
  try {
    return world_from_environment().is_main();
  } catch (const ConfigError&) {
    return true;
  }
}

ExitCode run_train(const TrainCommand& command) {
  std::error_code ignored;
  if (!std::filesystem::exists(command.config_path, ignored)) {
    throw ConfigError("{}: no such file (--config, relative to {})",
                      command.config_path,
                      std::filesystem::current_path().string());
  }
  if (command.dry_run) try_hosts_once();
  ReadOptions options =
      with_checkpoints({.overrides = command.overrides, .strict = command.strict});
  if (!command.dump_config) {
    options.find_missing = [&](NamedOutside named, Faults& faults) {
      if (!is_first_rank()) named.tracker = nullptr;  // the others do not use it
      find_missing(named, /*asks_hosts=*/command.dry_run, faults);
    };
  }
  const RunKind& kind = run_kind_of(config_kind(command.config_path));
  return answer(command, kind.load(command.config_path, options));
}

}  // namespace dalle2
