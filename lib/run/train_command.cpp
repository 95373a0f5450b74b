// SPDX-License-Identifier: MIT
#include <torch/version.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/log.h"
#include "base/stop_signal.h"
#include "base/version.h"
#include "config/run_config.h"
#include "run/commands.h"
#include "run/config_secrets.h"
#include "run/decoder_run.h"
#include "run/dry_run.h"
#include "run/prior_run.h"

namespace dalle2 {

std::string program_version_text() {
  return fmt::format("dalle2-train {} (LibTorch {})", program_version(), TORCH_VERSION);
}

void listen_for_stop_signals() {
  install_stop_signals();
}

namespace {

/// A signal before there is anything to save; afterwards the run answers it itself.
ExitCode train(const LoadedDecoderConfig& loaded, bool quiet) {
  std::optional<DecoderRun> run;
  try {
    run.emplace(loaded, quiet);
    run->open();
  } catch (const StoppedError&) {
    log_info("train",
             "signal {}: stopped before the first step, while the data was opened: nothing was "
             "trained, so nothing was saved (a checkpoint of an earlier run is as it was); run the "
             "same command again",
             stop_requested());
    return ExitCode::kStopped;
  }
  const ExitCode code = run->run();
  try {
    check_stdout();
  } catch (const ResourceError& error) {  // the files of the run are what counts
    log_warning("train", "{}: lines of this log are lost, log.jsonl has its numbers", error.what());
  }
  return code;
}

template <class Loaded>
void print_config(const TrainCommand& command, const Loaded& loaded) {
  for (const std::string& warning : loaded.warnings) log_warning("config", "{}", warning);
  if (command.quiet || command.dry_run) return;
  log_info("config", "{}:\n{}", command.config_path, without_url_secrets(loaded.raw_json));
}

ExitCode train_prior(const TrainCommand& command, const ReadOptions& options) {
  const LoadedPriorConfig loaded = load_prior_config(command.config_path, options);
  if (command.dump_config) {
    std::printf("%s\n", loaded.full_json.c_str());
    check_stdout();
    return ExitCode::kDone;
  }
  print_config(command, loaded);
  PriorRun run(loaded, command.quiet);
  if (!command.dry_run) return run.run();
  run.print_plan();
  check_stdout();
  return ExitCode::kDone;
}

}  // namespace

ExitCode run_train(const TrainCommand& command) {
  if (!std::filesystem::exists(command.config_path)) {
    throw ConfigError("{}: no such file (--config, relative to {})",
                      command.config_path,
                      std::filesystem::current_path().string());
  }
  const ReadOptions options = {.overrides = command.overrides, .strict = command.strict};
  if (is_prior_config(command.config_path)) return train_prior(command, options);
  const LoadedDecoderConfig loaded = load_decoder_config(command.config_path, options);
  if (command.dump_config) {
    std::printf("%s\n", loaded.full_json.c_str());
    check_stdout();
    return ExitCode::kDone;
  }
  print_config(command, loaded);
  if (command.dry_run) {
    dry_run(loaded);
    check_stdout();
    return ExitCode::kDone;
  }
  return train(loaded, command.quiet);
}

}  // namespace dalle2
