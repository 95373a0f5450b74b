// SPDX-License-Identifier: MIT
#include <torch/version.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/library_versions.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/version.h"
#include "config/run_config.h"
#include "io/library_versions.h"
#include "net/library_versions.h"
#include "run/commands.h"
#include "run/cuda_library.h"
#include "run/decoder_run.h"
#include "run/dry_run.h"
#include "run/prior_run.h"
#include "tracker/public_config.h"

namespace dalle2 {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = __VERSION__;  // "Clang 14.0.6"
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

}  // namespace

std::string program_version_text() {
  return fmt::format("dalle2-train {} (LibTorch {})\n  {}\n  {}, {}\n  {}\n  compiled by {}",
                     program_version(),
                     TORCH_VERSION,
                     cuda_library_text(cuda_library()),
                     base_library_versions(),
                     net_library_versions(),
                     io_library_versions(),
                     kCompiler);
}

namespace {

/// The file as it stands, its lines indented as those that continue a message.
void print_config(const std::string& path, const std::string& raw_json) {
  std::string text;
  for (const char letter : public_config(raw_json)) {
    text += letter;
    if (letter == '\n') text += "  ";
  }
  log_info("config", "{}:\n  {}", path, text);
}

/// A signal before there is anything to save; afterwards the run answers it itself.
template <class Run, class Loaded>
ExitCode train(const TrainCommand& command, const Loaded& loaded) {
  std::optional<Run> run;
  try {
    if (stop_requested() != 0) throw StoppedError("signal {}", stop_requested());
    run.emplace(loaded, command.quiet);
    run->open();
  } catch (const StoppedError&) {
    log_info("train",
             "signal {}: stopped before the first step, while the data was opened: nothing was "
             "trained, so nothing was saved (a checkpoint of an earlier run is as it was); run the "
             "same command again",
             stop_requested());
    return ExitCode::kStopped;
  }
  // Behind all that may refuse it: an error is the last that is to be seen.
  const ExitCode code = run->run([&] {
    if (!command.quiet) print_config(command.config_path, loaded.raw_json);
  });
  try {
    check_stdout();
  } catch (const ResourceError& error) {  // the files of the run are what counts
    log_warning("train", "{}: lines of this log are lost, log.jsonl has its numbers", error.what());
  }
  return code;
}

/// What the command asks of a config of any kind.
template <class Run, class Loaded>
ExitCode answer(const TrainCommand& command, const Loaded& loaded) {
  if (command.dump_config) {
    std::printf("%s\n", loaded.full_json.c_str());
    check_stdout();
    return ExitCode::kDone;
  }
  for (const std::string& warning : loaded.warnings) log_warning("config", "{}", warning);
  if (!command.dry_run) return train<Run>(command, loaded);
  dry_run(loaded);
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
  const ReadOptions options = {.overrides = command.overrides, .strict = command.strict};
  if (config_kind(command.config_path) == "prior") {
    return answer<PriorRun>(command, load_prior_config(command.config_path, options));
  }
  return answer<DecoderRun>(command, load_decoder_config(command.config_path, options));
}

}  // namespace dalle2
