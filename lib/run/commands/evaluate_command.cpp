// SPDX-License-Identifier: MIT
// dalle2-train evaluate: metrics of a checkpoint as one JSON object.
#include <nlohmann/json.hpp>

#include "run/checkpoints/model_weights.h"
#include "run/commands/several_processes.h"
#include "run/kinds.h"
#include "run/loop/run_session.h"

namespace dalle2 {

ModelSource Evaluation::source(const SharedTrainConfig& config) const {
  return {.checkpoint_path = command.checkpoint_path,
          .config_path = command.config_path,
          .overrides = command.overrides,
          .use_ema = command.use_ema,
          .allow_changed_config = config.allow_changed_config};
}

ExitCode run_evaluate(const EvaluateCommand& command) {
  const RunKind& kind = run_kind_of(config_kind(command.config_path));
  if (!command.timesteps.empty() && !kind.sample) {
    throw ConfigError("--timesteps: a {} draws nothing\n  Leave it out.", kind.key);
  }
  log_to_stderr();
  const LoadedRun loaded =
      kind.load(command.config_path, with_checkpoints({.overrides = command.overrides}));
  if (command.processes > 1) return launch(command.processes);
  const SharedTrainConfig& train = *loaded.train;
  const auto evaluate = [&](ProcessGroup& group) {
    check_same_config(group, loaded.full_json, train.device);
    {
      const ProcessGroup::BusyScope busy(group, "evaluating");
      const at::Device device =
          group.is_alone() ? prepare_device(train, group.world()) : group.device();
      const nlohmann::ordered_json found = loaded.figures({command, device, group});
      if (group.is_main()) print_line("{}", found.dump(2));
    }
    group.barrier("the end of the evaluation");
    return ExitCode::kDone;
  };
  return as_one_of_several(meeting_of(train, loaded.work, loaded.warnings), evaluate);
}

}  // namespace dalle2
