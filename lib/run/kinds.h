// SPDX-License-Identifier: MIT
// What the program does with a run of each kind. lib/config/kinds.h has what it knows of its config.
#pragma once

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/state_dict.h"
#include "config/kinds.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"
#include "run/device/compute_threads.h"
#include "run/loop/training_run.h"

namespace dalle2 {

/// What `evaluate` asks a kind with.
struct Evaluation {
  const EvaluateCommand& command;
  const at::Device& device;
  ProcessGroup& group;

  /// The weights to evaluate. @param config that of the training
  ModelSource source(const SharedTrainConfig& config) const;
};

/// A config that was read, and what can be done with it. Has to outlive the runs that it makes.
struct LoadedRun {
  std::string full_json;              ///< Loaded::full_json
  std::vector<std::string> warnings;  ///< of reading it
  const SharedTrainConfig* train = nullptr;
  PassWork work = {};  ///< pass_work()
  /// @throws ConfigError, DataError
  std::function<std::unique_ptr<TrainingRun>(const RunProcess& process)> make_run;
  /// Prints what a run of `processes` would take. @throws as a run would
  std::function<void(int64_t processes, const StartOptions& start)> dry_run;
  /// The figures of a checkpoint, of the samples of a split, which the ranks share. @return on rank 0
  /// @throws ConfigError, DataError
  std::function<nlohmann::ordered_json(const Evaluation& evaluation)> figures = {};
};

struct FirstConfig;

/// A kind of run. Whoever adds one adds a row to run_kinds(), and one to config_kinds().
struct RunKind {
  std::string key;  ///< ConfigKind::key
  /// What the names of its model's tensors may begin with, by which a file is known.
  std::vector<std::string> tensor_prefixes;
  std::function<LoadedRun(const std::string& config_path, const ReadOptions& options)> load;
  /// What `init` writes for a folder of data. Empty: nothing. @throws ConfigError, DataError
  std::function<FirstConfig(const InitCommand& command)> first_config = {};
  /// Draws with the weights of a checkpoint. Empty: nothing can be drawn.
  std::function<void(
      const SampleCommand& command, const Value& checkpoint, const at::Device& device)>
      sample = {};
};

/// In the order in which files are compared with them. Tests may add rows.
std::vector<RunKind>& run_kinds();
/// The row of a kind that can be trained. @throws ConfigError for none
const RunKind& run_kind_of(const std::string& key);

// The runs of the kinds. @param loaded has to outlive the run @throws ConfigError, DataError
std::unique_ptr<TrainingRun> make_run(const LoadedDecoderConfig& loaded, const RunProcess& process);
std::unique_ptr<TrainingRun> make_run(const LoadedPriorConfig& loaded, const RunProcess& process);
std::unique_ptr<TrainingRun> make_run(const LoadedVaeConfig& loaded, const RunProcess& process);
std::unique_ptr<TrainingRun> make_run(const LoadedClipConfig& loaded, const RunProcess& process);

nlohmann::ordered_json figures_of(const LoadedDecoderConfig& loaded, const Evaluation& evaluation);
nlohmann::ordered_json figures_of(const LoadedPriorConfig& loaded, const Evaluation& evaluation);
nlohmann::ordered_json figures_of(const LoadedVaeConfig& loaded, const Evaluation& evaluation);
nlohmann::ordered_json figures_of(const LoadedClipConfig& loaded, const Evaluation& evaluation);

// What they would take. @throws as they would
void dry_run(const LoadedDecoderConfig& loaded, int64_t processes, const StartOptions& start);
void dry_run(const LoadedPriorConfig& loaded, int64_t processes, const StartOptions& start);
void dry_run(const LoadedVaeConfig& loaded, int64_t processes, const StartOptions& start);
void dry_run(const LoadedClipConfig& loaded, int64_t processes, const StartOptions& start);

/// RunKind::load for a kind whose config `parse` reads from a text, and for which there are make_run()
/// and dry_run() as above.
template <auto parse>
LoadedRun load_run(const std::string& config_path, const ReadOptions& options) {
  using Config = decltype(parse({}, config_path, options));
  const auto loaded = std::make_shared<const Config>(load_config<parse>(config_path, options));
  LoadedRun run{
      .full_json = loaded->full_json,
      .warnings = loaded->warnings,
      .train = &loaded->config.train,
      .make_run = [loaded](const RunProcess& process) { return make_run(*loaded, process); },
      .dry_run = [loaded](int64_t processes,
                          const StartOptions& start) { dry_run(*loaded, processes, start); }};
  // A kind may not say them.
  if constexpr (requires { pass_work(*loaded); }) run.work = pass_work(*loaded);
  if constexpr (requires(const Evaluation& evaluation) { figures_of(*loaded, evaluation); })
    run.figures = [loaded](const Evaluation& evaluation) {
      return figures_of(*loaded, evaluation);
    };
  return run;
}

}  // namespace dalle2
